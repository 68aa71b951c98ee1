"""KV memory on a device: the pools of ../kv_cache.py there, and their twin in pinned memory of the host for swapping.

Filled with zeros, never left as they come: a kernel that reads whole blocks multiplies what it does not need by 0, and
0 x NaN is NaN. Copies are work on the one stream like any other, so what comes after them sees them, and they are over
when the step after them is.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from services.executor.batch import I32
from services.executor.capacity import Capacity
from services.executor.cuda.device import Device
from services.executor.kv_cache import BlockShape, KvCache, Pools
from services.executor.slots import read_column
from services.executor.torch_arrays import dtype_of
from services.wire.messages import CopyBlocks, CopyDirection


class DeviceKv(KvCache[Tensor]):
    """layers: one Pools for each layer, on the device."""

    def __init__(self, capacity: Capacity, num_layers: int, shape: BlockShape, device: Device) -> None:
        self._device = device
        self.layers = [_zeros(shape, capacity.num_blocks, device) for _ in range(num_layers)]
        self._pinned = [_pinned(shape, capacity.num_host_blocks, device) for _ in range(num_layers)]

    def copy(self, op: CopyBlocks) -> None:
        """Put the copies of whole blocks of every layer on the stream."""
        sources, destinations = read_column(op.sources), read_column(op.destinations)
        if op.direction == CopyDirection.WITHIN:
            self._copy_within(sources, destinations)
            return
        from_layers = self._pinned if op.direction == CopyDirection.IN else self.layers
        to_layers = self._pinned if op.direction == CopyDirection.OUT else self.layers
        for source, destination, count in runs(sources, destinations):
            for from_layer, to_layer in zip(from_layers, to_layers, strict=True):
                for from_pool, to_pool in zip(from_layer, to_layer, strict=True):
                    blocks = from_pool[source : source + count]
                    to_pool[destination : destination + count].copy_(blocks, non_blocking=True)

    def _copy_within(self, sources: I32, destinations: I32) -> None:
        own, others = self._device.upload(sources.astype("int64")), self._device.upload(destinations.astype("int64"))
        for layer in self.layers:
            for pool in layer:
                pool.index_copy_(0, others, pool.index_select(0, own))


def runs(sources: I32, destinations: I32) -> Iterator[tuple[int, int, int]]:
    """Blocks that follow one another on both sides, as (source, destination, how many): one copy each."""
    start = 0
    for end in range(1, len(sources) + 1):
        follows = (
            end < len(sources)
            and sources[end] == sources[end - 1] + 1
            and destinations[end] == destinations[end - 1] + 1
        )
        if not follows:
            yield int(sources[start]), int(destinations[start]), end - start
            start = end


def _zeros(shape: BlockShape, num_blocks: int, device: Device) -> Pools[Tensor]:
    with device.working():
        return Pools(
            *(
                torch.zeros((num_blocks, *cells), dtype=dtype_of(shape), device=device.target)
                for cells in (shape.keys, shape.values)
            )
        )


def _pinned(shape: BlockShape, num_blocks: int, device: Device) -> Pools[Tensor]:
    def pool(cells: tuple[int, ...]) -> Tensor:
        size = num_blocks * torch.Size(cells).numel() * shape.value_bytes
        return device.pinned(size).zero_().view(dtype_of(shape)).view((num_blocks, *cells))

    return Pools(pool(shape.keys), pool(shape.values))
