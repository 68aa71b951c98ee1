"""KV memory of the host: one pool of blocks for each layer, and its twin for swapping.

Keys are stored rotated. Pools are filled with zeros, and lazily: memory is taken as blocks are first written. Knows
block ids, not whose they are, and of a block no more than its shape: whoever computes attention says what lies where,
and in which kind of array it wants to see it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from services.executor.capacity import Capacity
from services.executor.slots import read_column
from services.wire.messages import CopyBlocks, CopyDirection

A = TypeVar("A")
Raw = NDArray[Any]  # unsigned integers as wide as the values that lie there
ValueType = Literal["float32", "float16", "bfloat16", "uint8"]

_VALUE_BYTES: dict[ValueType, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1}


class Pools(NamedTuple, Generic[A]):
    """The KV memory of one layer: twice [blocks, ...], block by block as BlockShape says."""

    keys: A
    values: A


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What one block of one layer holds."""

    keys: tuple[int, ...]
    values: tuple[int, ...]
    value_type: ValueType = "float32"

    @property
    def value_bytes(self) -> int:
        """Of one value."""
        return _VALUE_BYTES[self.value_type]

    @property
    def num_bytes(self) -> int:
        """Of one block in one layer."""
        return int(np.prod(self.keys) + np.prod(self.values)) * self.value_bytes


class KvCache(Generic[A]):
    """layers: one Pools for each layer, as `view` shows them."""

    def __init__(
        self, capacity: Capacity, num_layers: int, shape: BlockShape, view: Callable[[Raw, ValueType], A]
    ) -> None:
        self._pools = [_zeros(shape, capacity.num_blocks) for _ in range(num_layers)]
        self._host = [_zeros(shape, capacity.num_host_blocks) for _ in range(num_layers)]
        self.layers = [Pools(*(view(pool, shape.value_type) for pool in layer)) for layer in self._pools]

    def copy(self, op: CopyBlocks) -> None:
        """Copy whole blocks of every layer; over on return."""
        sources, destinations = read_column(op.sources), read_column(op.destinations)
        from_layers = self._host if op.direction == CopyDirection.IN else self._pools
        to_layers = self._host if op.direction == CopyDirection.OUT else self._pools
        for from_layer, to_layer in zip(from_layers, to_layers, strict=True):
            for source, destination in zip(from_layer, to_layer, strict=True):
                destination[destinations] = source[sources]


def _zeros(shape: BlockShape, num_blocks: int) -> Pools[Raw]:
    # numpy asks the kernel for zeroed memory instead of writing every byte of it; it knows no bfloat16.
    keys, values = (np.zeros((num_blocks, *cells), f"u{shape.value_bytes}") for cells in (shape.keys, shape.values))
    return Pools(keys, values)
