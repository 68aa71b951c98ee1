"""Attention of a ragged, packed batch over a paged KV pool: one signature, flash-attention's, whatever runs behind it.

Row r owns the query tokens cu_seqlens_q[r] .. cu_seqlens_q[r + 1]. They are the last of its kv_lens[r] positions, so
its query i of n sees the positions up to kv_lens[r] - n + i (causal, bottom-right); with a window of w > 0 only the
last w of these. Position p lies in cell p % block_size of block block_table[r, p // block_size]. KV of the new tokens
is in the pools before the call.

Here: plain torch, the oracle for every faster path. What it needs for a step is worked out once, in `prepare` (masks
when a layer first asks), and used by every layer. Rows with one query are computed together, in groups of similar
length; longer ones one by one. Nothing beyond a row's last position takes part, not even as 0 x NaN.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from services.executor.batch import I32, I64
from services.executor.kv_cache import Pools

# A group of decode rows may be padded to this multiple of its shortest row, and by so many blocks besides.
_PADDING_FACTOR = 1.5
_PADDING_BLOCKS = 4

P = TypeVar("P")


class Attention(Protocol, Generic[P]):
    """One implementation; P is whatever it works out once a step."""

    def prepare(self, cu_seqlens_q: I32, kv_lens: I32, block_table: I32, block_size: int) -> P:
        """cu_seqlens_q [R + 1], kv_lens [R], block_table [R, W]."""

    def attend(self, q: Tensor, pools: Pools[Tensor], plan: P, window: int = 0) -> Tensor:
        """q [T, heads, head_dim] -> [T, heads, head_dim]. window: positions a query sees, its own included; 0: all."""


def attend_paged(
    q: Tensor, pools: Pools[Tensor], cu_seqlens_q: I32, kv_lens: I32, block_table: I32, window: int = 0
) -> Tensor:
    """The whole contract in one call, by the reference."""
    reference = ReferenceAttention()
    plan = reference.prepare(cu_seqlens_q, kv_lens, block_table, pools.keys.shape[1])
    return reference.attend(q, pools, plan, window)


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows of one query each, padded to `length` positions. past_end: flat [rows x length] cells that do not exist."""

    queries: Tensor  # [rows] index into T
    blocks: Tensor  # [rows x blocks]
    length: int
    kv_lens: Tensor  # [rows, 1]
    past_end: Tensor
    masks: dict[int, Tensor] = field(default_factory=dict)  # by window

    def mask(self, window: int) -> Tensor:
        """[rows, 1, 1, length]: 0, or minus infinity past a row's end and before its window."""
        if window not in self.masks:
            positions = torch.arange(self.length)
            hidden = positions >= self.kv_lens
            if window:
                hidden |= positions < self.kv_lens - window
            mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
            self.masks[window] = mask[:, None, None, :]
        return self.masks[window]


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """One row of several queries first .. last."""

    first: int
    last: int
    blocks: Tensor
    length: int
    masks: dict[int, Tensor | None] = field(default_factory=dict)  # by window

    def mask(self, window: int) -> Tensor | None:
        """[queries, length]: what each query sees; None when that is everything up to itself and nothing precedes."""
        if window not in self.masks:
            count = self.last - self.first
            if count == self.length and not window:
                self.masks[window] = None
            else:
                seen = torch.ones(count, self.length, dtype=torch.bool).tril_(self.length - count)
                self.masks[window] = seen.triu_(self.length - count - window + 1) if window else seen
        return self.masks[window]


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    groups: list[DecodeGroup]
    prefills: list[PrefillRow]


class ReferenceAttention:
    """See the module docstring."""

    def prepare(self, cu_seqlens_q: I32, kv_lens: I32, block_table: I32, block_size: int) -> ReferencePlan:
        """Sort the rows into groups and make their masks."""
        counts = np.diff(cu_seqlens_q)
        decode_rows = np.flatnonzero(counts == 1)
        groups = [
            _decode_group(rows, cu_seqlens_q[rows].astype(np.int64), kv_lens[rows], block_table, block_size)
            for rows in _similar(decode_rows, kv_lens, block_size)
        ]
        prefills = [
            _prefill_row(int(cu_seqlens_q[row]), int(counts[row]), int(kv_lens[row]), block_table[row], block_size)
            for row in np.flatnonzero(counts > 1)
        ]
        return ReferencePlan(groups, prefills)

    def attend(self, q: Tensor, pools: Pools[Tensor], plan: ReferencePlan, window: int = 0) -> Tensor:
        """Pools are [blocks, block_size, kv_heads, head_dim]."""
        out = torch.empty_like(q)
        for group in plan.groups:
            out.index_copy_(0, group.queries, _attend_group(q, pools, group, window))
        for row in plan.prefills:
            out[row.first : row.last] = _attend_prefill(q[row.first : row.last], pools, row, window)
        return out


def _attend_group(q: Tensor, pools: Pools[Tensor], group: DecodeGroup, window: int) -> Tensor:
    num_rows, (_, num_heads, head_dim), num_kv_heads = len(group.queries), q.shape, pools.keys.shape[2]
    padded = (num_rows, group.length, num_kv_heads, head_dim)
    keys, values = (_gather(pool, group.blocks).to(q.dtype) for pool in pools)
    # A masked key still meets the query, and its weight of 0 still meets its value: neither may be NaN.
    keys.index_fill_(0, group.past_end, 0.0)
    values.index_fill_(0, group.past_end, 0.0)
    # The query heads that share a kv head stand where several queries would: they all see the same positions.
    queries = q.index_select(0, group.queries).view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    attended = scaled_dot_product_attention(
        queries,
        keys.view(padded).transpose(1, 2),
        values.view(padded).transpose(1, 2),
        attn_mask=group.mask(window).to(q.dtype),
    )
    return attended.reshape(num_rows, num_heads, head_dim)


def _attend_prefill(q: Tensor, pools: Pools[Tensor], row: PrefillRow, window: int) -> Tensor:
    keys, values = (_gather(pool, row.blocks)[: row.length].to(q.dtype) for pool in pools)
    mask = row.mask(window)
    attended = scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1)


def _gather(pool: Tensor, blocks: Tensor) -> Tensor:
    """[blocks x block_size, kv_heads, head_dim]: a copy of these blocks, one after the other."""
    return pool.index_select(0, blocks).flatten(0, 1)


def _similar(rows: I64, kv_lens: I32, block_size: int) -> Iterator[I64]:
    """Split rows into groups whose padding is bounded, shortest first."""
    rows = rows[np.argsort(kv_lens[rows], kind="stable")]
    lengths = kv_lens[rows]
    start = 0
    while start < len(rows):
        bound = lengths[start] * _PADDING_FACTOR + _PADDING_BLOCKS * block_size
        stop = int(np.searchsorted(lengths, bound, side="right"))
        yield rows[start:stop]
        start = stop


def _decode_group(rows: I64, queries: I64, kv_lens: I32, block_table: I32, block_size: int) -> DecodeGroup:
    num_blocks = -(-int(kv_lens.max()) // block_size)
    length = num_blocks * block_size
    blocks = block_table[rows, :num_blocks].astype(np.int64)
    # Entries past a row's last block mean nothing; block 0 is always there to be read and thrown away.
    blocks[np.arange(num_blocks) * block_size >= kv_lens[:, None]] = 0
    is_past = np.arange(length) >= kv_lens[:, None]
    return DecodeGroup(
        queries=torch.from_numpy(queries),
        blocks=torch.from_numpy(blocks.reshape(-1)),
        length=length,
        kv_lens=torch.from_numpy(kv_lens.astype(np.int64))[:, None],
        past_end=torch.from_numpy(np.flatnonzero(is_past)),
    )


def _prefill_row(first: int, count: int, length: int, table: I32, block_size: int) -> PrefillRow:
    blocks = torch.from_numpy(table[: -(-length // block_size)].astype(np.int64))
    return PrefillRow(first, first + count, blocks, length)
