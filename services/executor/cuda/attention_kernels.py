"""Triton kernels for attention over a paged KV pool: one query a row (decode), and tiles of queries (prefill).

Both follow the contract of ../attention.py: row r's queries cu_seqlens_q[r] .. cu_seqlens_q[r + 1] are the last of its
kv_lens[r] positions, and position p lies in cell p % block_size of block block_table[r, p // block_size]. Any block
size, head size and number of query heads a kv head; cells that hold no position of the row are never read. Softmax is
flash-attention's running one (Dao et al., 2022), in float32.

Decode cuts a row's positions into `num_splits` stretches whose length each program works out from kv_lens on the
device (flash-decoding), so nothing of a captured launch depends on how long the rows are.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from services.executor.cuda.plan import TILE, DevicePlan
from services.executor.kv_cache import Pools

_LOG2_E = 1.4426950408889634
_KEYS_AT_ONCE = 64
_LEAST_DOT = 16  # the fewest rows and columns that tl.dot takes


@triton.jit
def _turn(m, total, acc, scores, v):
    """One turn of the running softmax over scores [M, N] of values [N, D]; minus infinity where nothing is seen."""
    largest = tl.maximum(m, tl.max(scores, axis=1))
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    weights = tl.exp2(scores - shift[:, None])
    fade = tl.exp2(m - shift)
    total = total * fade + tl.sum(weights, axis=1)
    acc = acc * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return largest, total, acc


@triton.jit
def _cells(table, row, stride, position, seen, BLOCK_SIZE: tl.constexpr):
    """Where the positions of a row lie in the pool."""
    block = tl.load(table + row.to(tl.int64) * stride + position // BLOCK_SIZE, mask=seen, other=0)
    return block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE


@triton.jit
def _decode_kernel(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    rows: tl.tensor,
    cu_seqlens_q: tl.tensor,
    kv_lens: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    q_stride: tl.tensor,
    table_stride: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
):
    """One stretch of one row for the query heads of one kv head a program.

    With one stretch, out is the result [T, heads, d]; with several, what each found out [rows, heads, splits, d], and
    sums its largest score and the sum of its weights [rows, heads, splits, 2].
    """
    place, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(rows + place)
    token = tl.load(cu_seqlens_q + row).to(tl.int64)
    length = tl.load(kv_lens + row)
    first = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    stretch = tl.cdiv(tl.cdiv(length - first, SPLITS), N) * N
    start = first + split * stretch
    stop = tl.minimum(start + stretch, length)
    head, column, offset = tl.arange(0, M), tl.arange(0, D), tl.arange(0, N)
    is_head, is_column = head < GROUP, column < HEAD_DIM
    head = kv_head * GROUP + head
    is_query = is_head[:, None] & is_column[None, :]
    query = tl.load(q + token * q_stride + head[:, None] * HEAD_DIM + column[None, :], mask=is_query, other=0.0)
    m = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for begin in range(start, stop, N):
        position = begin + offset
        seen = position < stop
        cell = _cells(table, row, table_stride, position, seen, BLOCK_SIZE)
        at = (cell[:, None] * NUM_KV_HEADS + kv_head) * HEAD_DIM + column[None, :]
        is_value = seen[:, None] & is_column[None, :]
        k = tl.load(keys + at, mask=is_value, other=0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        v = tl.load(values + at, mask=is_value, other=0.0).to(query.dtype)
        m, total, acc = _turn(m, total, acc, tl.where(seen[None, :], scores, float("-inf")), v)
    if SPLITS == 1:
        to = out + token * NUM_KV_HEADS * GROUP * HEAD_DIM + head[:, None] * HEAD_DIM + column[None, :]
        tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=is_query)
    else:
        found = (place.to(tl.int64) * NUM_KV_HEADS * GROUP + head) * SPLITS + split
        tl.store(out + found[:, None] * HEAD_DIM + column[None, :], acc, mask=is_query)
        tl.store(sums + found * 2, m, mask=is_head)
        tl.store(sums + found * 2 + 1, total, mask=is_head)


@triton.jit
def _combine_kernel(
    parts: tl.tensor,
    sums: tl.tensor,
    rows: tl.tensor,
    cu_seqlens_q: tl.tensor,
    out: tl.tensor,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    D: tl.constexpr,
):
    """One head of one row a program: its stretches become one result. An empty stretch has weight 0."""
    place, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, D)
    exists = column < HEAD_DIM
    first = (place * tl.num_programs(1) + head) * SPLITS
    m, total = float("-inf"), 0.0
    acc = tl.zeros([D], tl.float32)
    for split in range(SPLITS):
        own = tl.load(sums + (first + split) * 2)
        largest = tl.maximum(m, own)
        weight, fade = tl.exp2(own - largest), tl.exp2(m - largest)
        total = total * fade + tl.load(sums + (first + split) * 2 + 1) * weight
        acc = acc * fade + tl.load(parts + (first + split) * HEAD_DIM + column, mask=exists, other=0.0) * weight
        m = largest
    token = tl.load(cu_seqlens_q + tl.load(rows + place)).to(tl.int64)
    to = out + (token * tl.num_programs(1) + head) * HEAD_DIM + column
    tl.store(to, (acc / total).to(out.dtype.element_ty), mask=exists)


@triton.jit
def _prefill_kernel(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    tiles: tl.tensor,
    cu_seqlens_q: tl.tensor,
    kv_lens: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    q_stride: tl.tensor,
    table_stride: tl.tensor,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
):
    """One tile of M queries for one head a program; tiles [n, 2] name a row and the first of its queries."""
    head, tile = tl.program_id(0), tl.program_id(1)
    row, first = tl.load(tiles + tile * 2), tl.load(tiles + tile * 2 + 1)
    token = tl.load(cu_seqlens_q + row)
    count = tl.load(cu_seqlens_q + row + 1) - token
    length = tl.load(kv_lens + row)
    own, column, offset = first + tl.arange(0, M), tl.arange(0, D), tl.arange(0, N)
    is_query = (own < count)[:, None] & (column < HEAD_DIM)[None, :]
    token = token.to(tl.int64)
    query = tl.load(q + (token + own)[:, None] * q_stride + head * HEAD_DIM + column[None, :], mask=is_query, other=0.0)
    last = length - count + own  # the last position that each query sees
    stop = tl.minimum(length, length - count + first + M)
    start = tl.where(window > 0, tl.maximum(length - count + first - window + 1, 0), 0) // N * N
    m = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for begin in range(start, stop, N):
        position = begin + offset
        exists = position < stop
        cell = _cells(table, row, table_stride, position, exists, BLOCK_SIZE)
        at = (cell[:, None] * NUM_KV_HEADS + head // GROUP) * HEAD_DIM + column[None, :]
        is_value = exists[:, None] & (column < HEAD_DIM)[None, :]
        k = tl.load(keys + at, mask=is_value, other=0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        seen = exists[None, :] & (position[None, :] <= last[:, None])
        seen = seen & ((window == 0) | (position[None, :] > last[:, None] - window))
        v = tl.load(values + at, mask=is_value, other=0.0).to(query.dtype)
        m, total, acc = _turn(m, total, acc, tl.where(seen, scores, float("-inf")), v)
    to = out + ((token + own)[:, None] * NUM_KV_HEADS * GROUP + head) * HEAD_DIM + column[None, :]
    total = tl.where(total > 0, total, 1.0)  # of a query past the row's end, which is not stored
    tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=is_query)


def attend(q: Tensor, pools: Pools[Tensor], plan: DevicePlan, window: int = 0) -> Tensor:
    """q [T, heads, d], each token's heads side by side -> [T, heads, d]."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    assert q.stride()[1:] == (q.shape[2], 1) and pools.keys.is_contiguous() and pools.values.is_contiguous()
    if len(plan.decode_rows):
        _decode(q, pools, plan, window, out)
    if len(plan.tiles):
        _prefill(q, pools, plan, window, out)
    return out


def _decode(q: Tensor, pools: Pools[Tensor], plan: DevicePlan, window: int, out: Tensor) -> None:
    (_, num_heads, head_dim), (_, block_size, num_kv_heads, _) = q.shape, pools.keys.shape
    num_rows, splits, group = len(plan.decode_rows), plan.num_splits, num_heads // num_kv_heads
    wide = triton.next_power_of_2(max(head_dim, _LEAST_DOT))
    parts = sums = out
    if splits > 1:
        parts = torch.empty(num_rows, num_heads, splits, head_dim, dtype=torch.float32, device=q.device)
        sums = torch.empty(num_rows, num_heads, splits, 2, dtype=torch.float32, device=q.device)
    _decode_kernel[(num_rows, num_kv_heads, splits)](
        q,
        pools.keys,
        pools.values,
        plan.decode_rows,
        plan.cu_seqlens_q,
        plan.kv_lens,
        plan.block_table,
        parts,
        sums,
        head_dim**-0.5 * _LOG2_E,
        window,
        q.stride(0),
        plan.block_table.stride(0),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        SPLITS=splits,
        M=triton.next_power_of_2(max(group, _LEAST_DOT)),
        N=_KEYS_AT_ONCE,
        D=wide,
    )
    if splits > 1:
        _combine_kernel[(num_rows, num_heads)](
            parts, sums, plan.decode_rows, plan.cu_seqlens_q, out, HEAD_DIM=head_dim, SPLITS=splits, D=wide
        )


def _prefill(q: Tensor, pools: Pools[Tensor], plan: DevicePlan, window: int, out: Tensor) -> None:
    (_, num_heads, head_dim), (_, block_size, num_kv_heads, _) = q.shape, pools.keys.shape
    _prefill_kernel[(num_heads, len(plan.tiles))](
        q,
        pools.keys,
        pools.values,
        plan.tiles,
        plan.cu_seqlens_q,
        plan.kv_lens,
        plan.block_table,
        out,
        head_dim**-0.5 * _LOG2_E,
        window,
        q.stride(0),
        plan.block_table.stride(0),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        M=TILE,
        N=_KEYS_AT_ONCE,
        D=triton.next_power_of_2(max(head_dim, _LEAST_DOT)),
    )
