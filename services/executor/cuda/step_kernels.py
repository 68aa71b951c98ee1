"""Triton kernels of a forward pass outside attention, and the functions that launch them.

Each does in one launch what the plain torch operations (../operations.py, the oracle) take several for: at a few rows
a GPU spends its time on launches. Sums are float32; what is stored is rounded as often as the oracle rounds it. The
kernels take any row length: a program's block is the next power of two, masked.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.executor.kv_cache import Pools
from services.executor.rope import RopeTables

_GATE_BLOCK = 1024


@triton.jit
def _add_normalize_kernel(
    hidden: tl.tensor,
    delta: tl.tensor,
    weight: tl.tensor,
    normed: tl.tensor,
    eps: tl.tensor,
    size: tl.tensor,
    HAS_DELTA: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row a program. Adds delta to hidden in place, if there is one, and writes the norm of the sum."""
    column = tl.arange(0, BLOCK)
    exists = column < size
    at = tl.program_id(0).to(tl.int64) * size + column
    x = tl.load(hidden + at, mask=exists, other=0.0)
    if HAS_DELTA:
        x = (x.to(tl.float32) + tl.load(delta + at, mask=exists, other=0.0).to(tl.float32)).to(x.dtype)
        tl.store(hidden + at, x, mask=exists)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
    scaled = wide * scale * tl.load(weight + column, mask=exists, other=0.0).to(tl.float32)
    tl.store(normed + at, scaled.to(x.dtype), mask=exists)


@triton.jit
def _rotate_and_store_kernel(
    qkv: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    positions: tl.tensor,
    cells: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    num_heads: tl.tensor,
    num_kv_heads: tl.tensor,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One head of one token a program: queries turn in place, keys turn into their cell, values go to theirs."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    exists = column < HALF
    first = (token * tl.num_programs(1) + head) * (2 * HALF) + column
    x = tl.load(qkv + first, mask=exists, other=0.0)
    y = tl.load(qkv + first + HALF, mask=exists, other=0.0)
    is_value = head >= num_heads + num_kv_heads
    angle = tl.load(positions + token).to(tl.int64) * HALF + column
    c = tl.where(is_value, 1.0, tl.load(cos + angle, mask=exists, other=1.0))
    s = tl.where(is_value, 0.0, tl.load(sin + angle, mask=exists, other=0.0))
    turned_x = x.to(tl.float32) * c - y.to(tl.float32) * s
    turned_y = y.to(tl.float32) * c + x.to(tl.float32) * s
    if head < num_heads:
        tl.store(qkv + first, turned_x.to(x.dtype), mask=exists)
        tl.store(qkv + first + HALF, turned_y.to(x.dtype), mask=exists)
    else:
        kv_head = (head - num_heads) % num_kv_heads
        cell = (tl.load(cells + token).to(tl.int64) * num_kv_heads + kv_head) * (2 * HALF) + column
        if is_value:
            tl.store(values + cell, turned_x.to(values.dtype.element_ty), mask=exists)
            tl.store(values + cell + HALF, turned_y.to(values.dtype.element_ty), mask=exists)
        else:
            tl.store(keys + cell, turned_x.to(keys.dtype.element_ty), mask=exists)
            tl.store(keys + cell + HALF, turned_y.to(keys.dtype.element_ty), mask=exists)


@triton.jit
def _gate_kernel(gate_up: tl.tensor, out: tl.tensor, size: tl.tensor, BLOCK: tl.constexpr):
    """A stretch of one row a program."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = column < size
    gate = tl.load(gate_up + row * 2 * size + column, mask=exists, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + column, mask=exists, other=0.0).to(tl.float32)
    tl.store(out + row * size + column, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=exists)


def normalize(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[..., n] -> [..., n]."""
    x = x.contiguous()
    normed = torch.empty_like(x)
    _launch_norm(x, x, weight, normed, eps)
    return normed


def add_normalize(hidden: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """hidden [T, n] takes delta in and is given back with its norm."""
    hidden, delta = hidden.contiguous(), delta.contiguous()
    normed = torch.empty_like(hidden)
    _launch_norm(hidden, delta, weight, normed, eps)
    return hidden, normed


def _launch_norm(hidden: Tensor, delta: Tensor, weight: Tensor, normed: Tensor, eps: float) -> None:
    size = hidden.shape[-1]
    num_rows = hidden.numel() // size
    if num_rows:
        _add_normalize_kernel[(num_rows,)](
            hidden, delta, weight, normed, eps, size, HAS_DELTA=delta is not hidden, BLOCK=triton.next_power_of_2(size)
        )


def rotate_and_store(qkv: Tensor, rope: RopeTables, positions: Tensor, cells: Tensor, pools: Pools[Tensor]) -> Tensor:
    """qkv [T, heads + 2 kv_heads, d] is turned in place where it holds queries; those are given back, a view of it.

    positions, cells: [T], int32 or int64. pools: [blocks, block_size, kv_heads, d], contiguous.
    """
    num_tokens, num_all, head_dim = qkv.shape
    num_kv_heads = pools.keys.shape[2]
    num_heads = num_all - 2 * num_kv_heads
    assert qkv.is_contiguous() and pools.keys.is_contiguous() and pools.values.is_contiguous()
    if num_tokens:
        _rotate_and_store_kernel[(num_tokens, num_all)](
            qkv,
            rope.cos,
            rope.sin,
            positions,
            cells,
            pools.keys,
            pools.values,
            num_heads,
            num_kv_heads,
            HALF=head_dim // 2,
            BLOCK=triton.next_power_of_2(head_dim // 2),
            num_warps=1,
        )
    return qkv[:, :num_heads]


def gate(gate_up: Tensor) -> Tensor:
    """silu of the first half of each row times the second: [T, 2n] -> [T, n]."""
    gate_up = gate_up.contiguous()
    num_rows, width = gate_up.shape
    out = torch.empty(num_rows, width // 2, dtype=gate_up.dtype, device=gate_up.device)
    if num_rows:
        _gate_kernel[(num_rows, triton.cdiv(width // 2, _GATE_BLOCK))](gate_up, out, width // 2, BLOCK=_GATE_BLOCK)
    return out
