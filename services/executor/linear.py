"""Matrix products with weights that never change: oneDNN's packed form where torch has it, else a plain product.

Packing lays a weight out once for the kernels that use it: from two rows on about twice as fast on a CPU as an unpacked
product, in the same precision. The two ops are private to torch (its Inductor emits them), hence the twin beside them.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

Linear = Callable[[Tensor], Tensor]  # [T, in] -> [T, out]


class Pack(Protocol):
    """Whatever makes a linear out of a weight [out, in] and perhaps a bias [out]."""

    def __call__(self, weight: Tensor, bias: Tensor | None = None) -> Linear: ...


# How many rows the packed layout is chosen for.
_TYPICAL_ROWS = 64


def pack(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The product with a weight [out, in], which may be let go of afterwards, plus a bias [out]."""
    if not has_packing(weight.dtype):
        return lambda x: linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)

    def product(x: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
        return result

    return product


def has_packing(dtype: torch.dtype = torch.float32) -> bool:
    """Whether this build of torch, on this processor, can pack weights of a type."""
    namespace = torch.ops.mkldnn
    is_built: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not is_built or not all(hasattr(namespace, op) for op in ("_reorder_linear_weight", "_linear_pointwise")):
        return False
    if dtype == torch.bfloat16:
        return bool(namespace._is_mkldnn_bf16_supported())
    return dtype == torch.float32 or bool(namespace._is_mkldnn_fp16_supported())
