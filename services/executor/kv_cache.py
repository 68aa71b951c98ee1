"""KV memory of the torch backend: one pool of blocks for each layer, and its twin in host memory for swapping.

Keys are stored rotated. Pools are filled with zeros, and lazily: memory is taken as blocks are first written. Knows
block ids, not whose they are.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from services.executor.capacity import Capacity
from services.executor.slots import read_column
from services.wire.messages import CopyBlocks, CopyDirection


class Pools(NamedTuple):
    """The KV memory of one layer: twice [blocks, block_size, kv_heads, head_dim], unless the implementation of the
    operations that reads and writes it has a layout of its own. The first dimension is always the block."""

    keys: Tensor
    values: Tensor


class KvCache:
    """One Pools for each layer, float32."""

    def __init__(self, capacity: Capacity, num_layers: int, num_kv_heads: int, head_dim: int) -> None:
        cell = (capacity.block_size, num_kv_heads, head_dim)
        self._pools = _zeros(2, num_layers, capacity.num_blocks, *cell)
        self._host = _zeros(2, num_layers, capacity.num_host_blocks, *cell)
        keys, values = self._pools
        self.layers = [Pools(*pools) for pools in zip(keys, values, strict=True)]

    def copy(self, op: CopyBlocks) -> None:
        """Copy whole blocks of every layer; over on return."""
        sources, destinations = (
            torch.tensor(read_column(ids), dtype=torch.int64) for ids in (op.sources, op.destinations)
        )
        source = self._host if op.direction == CopyDirection.IN else self._pools
        destination = self._host if op.direction == CopyDirection.OUT else self._pools
        for kind in range(2):
            for layer in range(source.shape[1]):
                destination[kind, layer].index_copy_(0, destinations, source[kind, layer].index_select(0, sources))


def _zeros(*shape: int) -> Tensor:
    # numpy asks the kernel for zeroed memory, where torch would write every byte of it.
    return torch.from_numpy(np.zeros(shape, np.float32))
