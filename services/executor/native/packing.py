"""From stored tensors to packed weights: which rows of which tensors make a weight, and how they are laid out for it.

Blocks of Q4_0, Q4_1 and Q8_0 are taken as they are; anything else is dequantized and becomes Q8_0. A row is an address,
so stacking tensors and reordering their rows costs nothing.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from services.executor.native.binding import Format, Kernels, Weight
from services.executor.stored import StoredTensor

F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Order = NDArray[np.int64]
Addresses = NDArray[np.uint64]

BLOCK = 32  # columns that share a scale
STRIP = 32  # rows that one thread takes at least
# Rows of a tensor that is neither dequantized nor packed yet, in memory at once.
_ROWS_AT_ONCE = 4096
_ALIGNMENT = 64
# Memory asked of the system at once. What is never written takes no room.
_CHUNK_BYTES = 64 << 20

_DIRECT = {
    GGMLQuantizationType.Q4_0: Format.Q4_0,
    GGMLQuantizationType.Q4_1: Format.Q4_1,
    GGMLQuantizationType.Q8_0: Format.Q8_0,
}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one stored tensor in the order in which they are wanted; order: indices into them."""

    tensor: StoredTensor
    order: Order


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """The struct, and what it points to."""

    struct: Weight
    memory: Bytes
    bias: F32 | None


class Arena:
    """Zeroed memory in large pages where the system has them: weights are read from end to end, many at a time."""

    def __init__(self) -> None:
        self._left = np.zeros(0, np.uint8)

    def take(self, num_bytes: int) -> Bytes:
        """So many bytes, aligned to 64; they live as long as the array does."""
        num_bytes = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        if num_bytes > len(self._left):
            memory = mmap.mmap(-1, max(num_bytes, _CHUNK_BYTES))
            memory.madvise(mmap.MADV_HUGEPAGE)
            self._left = np.frombuffer(memory, np.uint8)
        taken, self._left = self._left[:num_bytes], self._left[num_bytes:]
        return taken


class Packer:
    """Packs weights with one variant's kernels, on so many threads."""

    def __init__(self, kernels: Kernels, num_threads: int) -> None:
        self.kernels = kernels
        self.num_threads = num_threads
        self._arena = Arena()

    def pack(self, parts: Sequence[Rows], order: Order | None = None, bias: F32 | None = None) -> PackedWeight:
        """Stack the parts; order: the rows of the stack as they are wanted."""
        formats = {_DIRECT.get(part.tensor.quantization, Format.F32) for part in parts}
        stored_as = formats.pop() if len(formats) == 1 else Format.F32
        columns = parts[0].tensor.shape[-1]
        held = [part.tensor.raw if stored_as != Format.F32 else _floats(part.tensor) for part in parts]
        addresses = np.concatenate([_addresses(array, part.order) for array, part in zip(held, parts, strict=True)])
        if order is not None:
            addresses = addresses[order]
        return self._pack(stored_as, np.ascontiguousarray(addresses), columns, bias)

    def _pack(self, stored_as: Format, addresses: Addresses, columns: int, bias: F32 | None) -> PackedWeight:
        assert columns % BLOCK == 0, "a row is a whole number of blocks"
        memory = self._arena.take(self.kernels.packed_bytes(stored_as, len(addresses), columns))
        weight = Weight(
            format=stored_as,
            rows=len(addresses),
            columns=columns,
            packed=memory.ctypes.data,
            bias=None if bias is None else bias.ctypes.data,
        )
        self.kernels.pack(weight, addresses.ctypes.data, self.num_threads)
        return PackedWeight(weight, memory, bias)


def _floats(tensor: StoredTensor) -> F32:
    num_rows = len(tensor.raw)
    values = np.empty((num_rows, tensor.shape[-1]), np.float32)
    for first in range(0, num_rows, _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, num_rows)
        values[first:last] = tensor.floats(first, last)
    return values


def _addresses(rows: Bytes | F32, order: Order) -> Addresses:
    assert rows.strides[1] == rows.itemsize, "a row lies in one piece"
    return (rows.ctypes.data + order * rows.strides[0]).astype(np.uint64)
