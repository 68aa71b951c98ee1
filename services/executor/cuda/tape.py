"""A graph for a device that has none: the operations of a captured step, taped, and done again on the same memory.

It holds to a CUDA graph's rules, so that a break of them shows on any machine: replay knows nothing but the tensors
that were there at the capture, so whatever else a step depends on is baked in and comes out wrong; and what would have
to read the device while it is captured is an error.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

R = TypeVar("R")

# What needs a value of the device on the host, or a size that depends on one.
READS = frozenset(
    {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::nonzero", "aten::masked_select"}
    | {"aten::equal", "aten::unique_dim", "aten::_unique2", "aten::repeat_interleave.Tensor", "aten::multinomial"}
)


class _Taping(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operation below it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entries: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.name() in READS or (func.name() == "aten::index.Tensor" and _has_mask(args[1])):
            raise RuntimeError(f"{func.name()}: a captured step may not read the device")
        out = func(*args, **(kwargs or {}))
        self.entries.append((func, args, kwargs or {}, out))
        return out


def _has_mask(indices: Any) -> bool:
    return any(isinstance(index, Tensor) and index.dtype == torch.bool for index in indices)


class TapedGraph:
    """See the module docstring."""

    def __init__(self, entries: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]]) -> None:
        self._entries = entries

    @classmethod
    def record(cls, act: Callable[[], R]) -> "tuple[TapedGraph, R]":
        """Do it, and keep how it was done."""
        with _Taping() as taping:
            result = act()
        return cls(taping.entries), result

    def replay(self) -> None:
        """Each operation again, its results put where they were put the first time."""
        with torch.inference_mode():
            for func, args, kwargs, out in self._entries:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
