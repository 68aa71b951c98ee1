"""Attention by libraries: flash-attn 3, flash-attn 2, and torch's varlen_attn where its version pages.

Each is one call over the whole step. None of it is imported before it was chosen (choice.py). Causal and bottom-right
is what a window of (w - 1, 0) means to all three, with -1 for no window.
"""

import importlib
from collections.abc import Callable
from typing import Any

from torch import Tensor

from services.executor.cuda.plan import DevicePlan
from services.executor.kv_cache import Pools

Attend = Callable[[Tensor, Pools[Tensor], DevicePlan, int], Tensor]


def open_flash_3() -> Attend:
    """How many stretches it cuts rows into is told, so that a captured step does as it did."""
    with_kvcache: Callable[..., Any] = importlib.import_module("flash_attn_interface").flash_attn_with_kvcache

    def attend(q: Tensor, pools: Pools[Tensor], plan: DevicePlan, window: int = 0) -> Tensor:
        out: Tensor = with_kvcache(
            q,
            pools.keys,
            pools.values,
            cache_seqlens=plan.kv_lens,
            page_table=plan.block_table,
            cu_seqlens_q=plan.cu_seqlens_q,
            max_seqlen_q=plan.max_q,
            causal=True,
            window_size=_window(window),
            num_splits=plan.num_splits if plan.max_q == 1 else 0,
        )
        return out

    return attend


def open_flash_2() -> Attend:
    """Lengths go in as running sums of them."""
    varlen: Callable[..., Any] = importlib.import_module("flash_attn").flash_attn_varlen_func

    def attend(q: Tensor, pools: Pools[Tensor], plan: DevicePlan, window: int = 0) -> Tensor:
        out: Tensor = varlen(
            q,
            pools.keys,
            pools.values,
            plan.cu_seqlens_q,
            plan.cu_seqlens_k,
            plan.max_q,
            plan.max_kv,
            causal=True,
            window_size=_window(window),
            block_table=plan.block_table,
        )
        return out

    return attend


def open_varlen() -> Attend:
    """num_splits=1 since more of them give wrong rows with a block table in torch 2.13."""
    varlen: Callable[..., Any] = importlib.import_module("torch.nn.attention.varlen").varlen_attn

    def attend(q: Tensor, pools: Pools[Tensor], plan: DevicePlan, window: int = 0) -> Tensor:
        out: Tensor = varlen(
            q,
            pools.keys,
            pools.values,
            plan.cu_seqlens_q,
            plan.cu_seqlens_k,
            plan.max_q,
            plan.max_kv,
            window_size=(window - 1 if window else -1, 0),
            enable_gqa=True,
            seqused_k=plan.kv_lens,
            block_table=plan.block_table,
            num_splits=1,
        )
        return out

    return attend


def _window(window: int) -> tuple[int, int]:
    return (window - 1, 0) if window else (-1, -1)
