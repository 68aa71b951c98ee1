"""Arrays of several types in one piece of memory, so that they reach the device in one copy.

A layout is told by its fields alone: two layouts that begin with the same fields have them in the same places. That is
what a captured graph counts on, whose inputs are the first fields of whatever else a step brings along.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNMENT = 16

_TORCH_TYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}


class Field(NamedTuple):
    """One array. dtype: int32, int64 or float32."""

    name: str
    dtype: "type[np.generic]"
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


class Layout:
    """Where each field lies. num_bytes: of all."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = tuple(fields)
        self._offsets: list[int] = []
        self.num_bytes = 0
        for field in self._fields:
            self._offsets.append(self.num_bytes)
            self.num_bytes += -(-field.num_bytes // _ALIGNMENT) * _ALIGNMENT

    def arrays(self, memory: Tensor) -> dict[str, NDArray[np.generic]]:
        """The fields in memory of the host, uint8."""
        octets = memory.numpy()
        return {
            field.name: octets[at : at + field.num_bytes].view(field.dtype).reshape(field.shape)
            for field, at in zip(self._fields, self._offsets, strict=True)
        }

    def tensors(self, memory: Tensor) -> dict[str, Tensor]:
        """The fields in memory of any device, uint8."""
        return {
            field.name: memory[at : at + field.num_bytes].view(_TORCH_TYPES[np.dtype(field.dtype)]).view(field.shape)
            for field, at in zip(self._fields, self._offsets, strict=True)
        }
