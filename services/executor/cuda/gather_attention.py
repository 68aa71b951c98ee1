"""Attention that gathers a row's blocks and leaves the rest to torch: the last resort, and what runs on any device.

Decode does it for all rows at once, as wide as the block table is, with shapes that a captured step keeps; the other
rows go one by one. It reads KV three times over, so on a GPU it is for machines without Triton.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from services.executor.cuda.plan import DevicePlan, LongRow
from services.executor.kv_cache import Pools


def attend(q: Tensor, pools: Pools[Tensor], plan: DevicePlan, window: int = 0) -> Tensor:
    """q [T, heads, d] -> [T, heads, d]."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if len(plan.decode_rows):
        places = plan.cu_seqlens_q.index_select(0, plan.decode_rows).long()
        out.index_copy_(0, places, _decode(q.index_select(0, places), pools, plan, window))
    for row in plan.long_rows:
        out[row.first : row.first + row.num_queries] = _prefill(q, pools, plan, (row, window))
    return out


def _decode(q: Tensor, pools: Pools[Tensor], plan: DevicePlan, window: int) -> Tensor:
    num_rows, num_heads, head_dim = q.shape
    lengths = plan.kv_lens.index_select(0, plan.decode_rows)[:, None]
    blocks = plan.block_table.index_select(0, plan.decode_rows)
    position = torch.arange(blocks.shape[1] * pools.keys.shape[1], device=q.device)
    hidden = position >= lengths
    if window:
        hidden = hidden | (position < lengths - window)
    keys, values = (
        pool.index_select(0, blocks.flatten())
        .view(num_rows, len(position), -1, head_dim)
        .to(q.dtype)
        # A masked key still meets the query, and its weight of 0 still meets its value: neither may be NaN.
        .masked_fill_(hidden[:, :, None, None], 0.0)
        .transpose(1, 2)
        for pool in pools
    )
    mask = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device).masked_fill_(hidden, float("-inf"))
    # The query heads that share a kv head stand where several queries would: they all see the same positions.
    queries = q.reshape(num_rows, keys.shape[1], -1, head_dim)
    attended = scaled_dot_product_attention(queries, keys, values, attn_mask=mask[:, None, None])
    return attended.reshape(num_rows, num_heads, head_dim)


def _prefill(q: Tensor, pools: Pools[Tensor], plan: DevicePlan, what: tuple[LongRow, int]) -> Tensor:
    row, window = what
    num_blocks = -(-row.length // pools.keys.shape[1])
    blocks = plan.block_table[row.row, :num_blocks]
    keys, values = (
        pool.index_select(0, blocks).flatten(0, 1)[: row.length].to(q.dtype).transpose(0, 1)[None] for pool in pools
    )
    queries = q[row.first : row.first + row.num_queries].transpose(0, 1)[None]
    seen = torch.ones(row.num_queries, row.length, dtype=torch.bool, device=q.device).tril_(
        row.length - row.num_queries
    )
    if window:
        seen = seen.triu_(row.length - row.num_queries - window + 1)
    attended = scaled_dot_product_attention(queries, keys, values, attn_mask=seen, enable_gqa=True)
    return attended[0].transpose(0, 1)
