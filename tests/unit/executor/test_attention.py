"""The attention contract: the reference against an attention written as plainly as can be, on random shapes.

Whoever adds an implementation adds it to IMPLEMENTATIONS.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from services.executor.attention import attend_paged
from services.executor.batch import I32
from services.executor.kv_cache import Pools

BLOCK_SIZE = 4

IMPLEMENTATIONS: dict[str, Callable[[Tensor, Pools[Tensor], I32, I32, I32, int], Tensor]] = {"reference": attend_paged}


def naive(q: Tensor, keys: Tensor, values: Tensor, window: int) -> Tensor:
    """One sequence: q [n, heads, d] are the last n of the positions of keys and values [length, kv_heads, d]."""
    num_queries, num_heads, head_dim = q.shape
    length, num_kv_heads, _ = keys.shape
    out = torch.empty_like(q)
    for query in range(num_queries):
        last = length - num_queries + query + 1
        seen = slice(max(last - window, 0) if window else 0, last)
        for head in range(num_heads):
            kv_head = head * num_kv_heads // num_heads
            scores = keys[seen, kv_head].double() @ q[query, head].double() / head_dim**0.5
            out[query, head] = (scores.softmax(0) @ values[seen, kv_head].double()).float()
    return out


class Case:
    """Rows of (queries, positions) with their KV spread over shuffled blocks; every cell nobody owns is NaN."""

    def __init__(self, rows: list[tuple[int, int]], heads: tuple[int, int, int], seed: int, window: int = 0) -> None:
        self.window = window
        num_heads, num_kv_heads, head_dim = heads
        generator = torch.Generator().manual_seed(seed)
        widths = [-(-length // BLOCK_SIZE) for _, length in rows]
        shuffled = torch.randperm(sum(widths) + 5, generator=generator).numpy() + 1
        shape = (sum(widths) + 6, BLOCK_SIZE, num_kv_heads, head_dim)
        self.pools = Pools(torch.full(shape, torch.nan), torch.full(shape, torch.nan))
        # Entries past a row's last block mean nothing: here they name a block full of NaN.
        self.block_table: I32 = np.full((len(rows), max(widths)), shuffled[-1], np.int32)
        self.kv_lens = np.array([length for _, length in rows], np.int32)
        self.cu_seqlens_q = np.cumsum([0, *(count for count, _ in rows)]).astype(np.int32)
        self.q = torch.randn(int(self.cu_seqlens_q[-1]), num_heads, head_dim, generator=generator)
        self.expected = torch.empty_like(self.q)
        start = 0
        for row, (width, (_, length)) in enumerate(zip(widths, rows, strict=True)):
            blocks = shuffled[start : start + width]
            start += width
            self.block_table[row, :width] = blocks
            keys = torch.randn(length, num_kv_heads, head_dim, generator=generator)
            values = torch.randn(length, num_kv_heads, head_dim, generator=generator)
            for position in range(length):
                block, offset = blocks[position // BLOCK_SIZE], position % BLOCK_SIZE
                self.pools.keys[block, offset], self.pools.values[block, offset] = keys[position], values[position]
            span = slice(self.cu_seqlens_q[row], self.cu_seqlens_q[row + 1])
            self.expected[span] = naive(self.q[span], keys, values, window)

    def attend(self, implementation: str) -> Tensor:
        return IMPLEMENTATIONS[implementation](
            self.q, self.pools, self.cu_seqlens_q, self.kv_lens, self.block_table, self.window
        )


ROWS = {
    "decode": [(1, 1), (1, 4), (1, 5), (1, 13)],
    "decode of very different lengths": [(1, 150), (1, 2), (1, 90), (1, 3), (1, 160)],
    "whole prompts": [(1, 1), (4, 4), (7, 7), (13, 13)],
    "chunks with a prefix": [(3, 8), (5, 6), (2, 17), (4, 4)],
    "a mixture": [(1, 9), (1, 1), (7, 7), (33, 64), (1, 30), (2, 3)],
}
HEADS = [(9, 3, 64), (8, 8, 16), (8, 2, 32), (4, 1, 8)]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_every_row_sees_its_own_positions_up_to_each_query(
    rows: str, heads: tuple[int, int, int], implementation: str
) -> None:
    case = Case(ROWS[rows], heads, seed=len(rows))
    torch.testing.assert_close(case.attend(implementation), case.expected, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("seed", range(8))
def test_random_batches(seed: int, implementation: str) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 60, rng.integers(1, 9)).tolist()
    rows = [(1 if rng.random() < 0.5 else int(rng.integers(1, length + 1)), length) for length in lengths]
    case = Case(rows, HEADS[seed % len(HEADS)], seed, window=int(rng.integers(1, 30)) if seed % 2 else 0)
    torch.testing.assert_close(case.attend(implementation), case.expected, atol=2e-6, rtol=2e-5)
