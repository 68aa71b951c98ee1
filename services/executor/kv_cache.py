"""KV memory of the torch backend: one pool of blocks for each layer, and its twin in host memory for swapping.

Keys are stored rotated. Pools are filled with zeros, and lazily: memory is taken as blocks are first written. Knows
block ids, not whose they are, and of a block no more than its shape: whoever computes attention says what lies where.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from services.executor.capacity import Capacity
from services.executor.slots import read_column
from services.wire.messages import CopyBlocks, CopyDirection


class Pools(NamedTuple):
    """The KV memory of one layer: twice [blocks, ...], block by block as BlockShape says."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What one block of one layer holds."""

    keys: tuple[int, ...]
    values: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    @property
    def num_bytes(self) -> int:
        """Of one block in one layer."""
        return int(np.prod(self.keys) + np.prod(self.values)) * self.dtype.itemsize


def plain_blocks(block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> BlockShape:
    """[block_size, kv_heads, head_dim]: what the plain torch operations read."""
    cells = (block_size, num_kv_heads, head_dim)
    return BlockShape(cells, cells, dtype)


class KvCache:
    """layers: one Pools for each layer."""

    def __init__(self, capacity: Capacity, num_layers: int, shape: BlockShape) -> None:
        self.layers = [_zeros(shape, capacity.num_blocks) for _ in range(num_layers)]
        self._host = [_zeros(shape, capacity.num_host_blocks) for _ in range(num_layers)]

    def copy(self, op: CopyBlocks) -> None:
        """Copy whole blocks of every layer; over on return."""
        sources, destinations = (
            torch.tensor(read_column(ids), dtype=torch.int64) for ids in (op.sources, op.destinations)
        )
        from_layers = self._host if op.direction == CopyDirection.IN else self.layers
        to_layers = self._host if op.direction == CopyDirection.OUT else self.layers
        for from_layer, to_layer in zip(from_layers, to_layers, strict=True):
            for source, destination in zip(from_layer, to_layer, strict=True):
                destination.index_copy_(0, destinations, source.index_select(0, sources))


def _zeros(shape: BlockShape, num_blocks: int) -> Pools:
    keys, values = (_zeroed((num_blocks, *cells), shape.dtype) for cells in (shape.keys, shape.values))
    return Pools(keys, values)


def _zeroed(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    # numpy asks the kernel for zeroed memory, where torch would write every byte of it; it knows no bfloat16.
    return torch.from_numpy(np.zeros(shape, f"u{dtype.itemsize}")).view(dtype)
