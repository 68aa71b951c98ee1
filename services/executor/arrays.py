"""The kinds of arrays that models compute with, and the few steps between them and the host's plain numpy.

A model takes indices and gives hidden states and logits in arrays of its kind; whoever drives it and draws tokens from
its logits knows numpy alone. Here is numpy's own kind; torch's is in torch_arrays.py.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from services.executor.batch import F32, I64
from services.executor.kv_cache import Raw, ValueType

A = TypeVar("A")
Numbers = NDArray[Any]


class Arrays(Protocol[A]):
    """One kind."""

    def of(self, indices: I64) -> A:
        """The same numbers; they may share memory."""

    def pick(self, values: A, rows: I64) -> A:
        """Some rows, copied."""

    def cut(self, values: A, first: int, last: int) -> A:
        """The rows from first to before last; they share memory."""

    def stack(self, parts: Sequence[A]) -> A:
        """One after the other, copied."""

    def floats(self, values: A) -> F32:
        """In the host's memory, contiguous and float32; they may share it."""


class NumpyArrays:
    """See the module docstring."""

    def of(self, indices: Numbers) -> Numbers:
        """Themselves."""
        return indices

    def pick(self, values: Numbers, rows: I64) -> Numbers:
        """By their indices."""
        return values[rows]

    def cut(self, values: Numbers, first: int, last: int) -> Numbers:
        """Some rows in a sequence."""
        return values[first:last]

    def stack(self, parts: Sequence[Numbers]) -> Numbers:
        """One after the other, copied."""
        return np.concatenate(parts)

    def floats(self, values: Numbers) -> F32:
        """Themselves."""
        return values


NUMPY = NumpyArrays()


def as_stored(pool: Raw, _: ValueType) -> Raw:
    """How numpy sees KV memory: not at all, but for its address."""
    return pool
