"""The attention kernel against the plain torch reference, on random shapes and every type of KV memory."""

import numpy as np
import pytest
import torch

from services.executor.attention import attend_paged
from services.executor.batch import I32
from services.executor.kv_cache import Pools
from services.executor.native.binding import Kernels, KvType
from tests.unit.executor.native.cells import attend, native_pools

# heads, kv_heads, head_dim: every ratio up to 8, the usual head sizes and some others.
HEADS = [(9, 3, 64), (8, 8, 64), (8, 2, 128), (8, 1, 64), (5, 1, 32), (14, 2, 96), (6, 3, 16), (3, 1, 256)]


class Case:
    """Rows of (queries, positions) over shuffled blocks; every cell nobody owns is not a number."""

    def __init__(self, rows: list[tuple[int, int]], heads: tuple[int, int, int], block_size: int, seed: int) -> None:
        num_heads, num_kv_heads, head_dim = heads
        generator = torch.Generator().manual_seed(seed)
        widths = [-(-length // block_size) for _, length in rows]
        blocks = (torch.randperm(sum(widths) + 2, generator=generator).numpy() + 1).astype(np.int32)
        shape = (len(blocks) + 1, block_size, num_kv_heads, head_dim)
        self.pools = Pools(torch.full(shape, torch.nan), torch.full(shape, torch.nan))
        table: I32 = np.full((len(rows), max(widths, default=0)), blocks[-1], np.int32)
        for row, (width, (_, length)) in enumerate(zip(widths, rows, strict=True)):
            table[row, :width], blocks = blocks[:width], blocks[width:]
            cells = torch.from_numpy(table[row, :width].astype(np.int64))
            for pool in self.pools:
                content = torch.full((width * block_size, num_kv_heads, head_dim), torch.nan)
                content[:length] = torch.randn(length, num_kv_heads, head_dim, generator=generator)
                pool[cells] = content.view(width, block_size, num_kv_heads, head_dim)
        lens = np.array([length for _, length in rows], np.int32)
        self.rows = (np.cumsum([0, *(count for count, _ in rows)]).astype(np.int32), lens, table)
        self.q = torch.randn(int(self.rows[0][-1]), num_heads, head_dim, generator=generator)

    def check(self, kernels: Kernels, kv_type: KvType, window: int = 0) -> None:
        """The reference reads what the kernels hold, rounded as it is."""
        pools = native_pools(self.pools, self.q.shape[1], kv_type)
        expected = attend_paged(self.q, pools.plain(), *self.rows, window)
        torch.testing.assert_close(
            attend(kernels, self.q, pools, self.rows, window), expected, atol=5e-6, rtol=5e-5, equal_nan=False
        )


def random_rows(rng: np.random.Generator, longest: int) -> list[tuple[int, int]]:
    lengths = rng.integers(1, longest, rng.integers(1, 6)).tolist()
    return [(1 if rng.random() < 0.5 else int(rng.integers(1, min(length, 90) + 1)), length) for length in lengths]


@pytest.mark.parametrize("kv_type", KvType)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_random_batches(kernels: Kernels, heads: tuple[int, int, int], kv_type: KvType) -> None:
    rng = np.random.default_rng(HEADS.index(heads))
    for seed in range(3):
        block_size = int(rng.choice([16, 32, 64]))
        Case(random_rows(rng, 400), heads, block_size, seed).check(kernels, kv_type)


@pytest.mark.parametrize("window", [1, 2, 15, 16, 100, 128, 129, 1000])
def test_a_window_hides_what_lies_before_it(kernels: Kernels, window: int) -> None:
    rng = np.random.default_rng(window)
    rows = [*random_rows(rng, 500), (1, 700), (60, 300), (40, 40)]
    Case(rows, (4, 2, 64), 16, window).check(kernels, KvType.FLOAT32, window)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 127, 128, 129, 2000, 8192])
def test_one_row_of_any_length(kernels: Kernels, length: int) -> None:
    Case([(1, length)], (3, 1, 64), 16, length).check(kernels, KvType.FLOAT16)


def test_the_last_queries_of_a_long_row(kernels: Kernels) -> None:
    Case([(33, 8192)], (2, 1, 64), 16, 1).check(kernels, KvType.FLOAT32)


@pytest.mark.parametrize("kv_type", KvType)
def test_many_rows_of_one_query_and_a_few_of_more(kernels: Kernels, kv_type: KvType) -> None:
    rows = [(1, 1 + 37 * index % 300) for index in range(20)] + [(30, 150), (2, 2)]
    Case(rows, (9, 3, 64), 16, 3).check(kernels, kv_type, window=100)


def test_a_step_without_rows(kernels: Kernels) -> None:
    Case([], (3, 1, 64), 16, 1).check(kernels, KvType.FLOAT32)


def test_a_query_is_the_same_bit_for_bit_in_any_company(kernels: Kernels) -> None:
    # Enough rows that a row is not divided among threads, and one that is.
    case = Case([(120, 300), (1, 500), (7, 7), *((1, 40 * index + 1) for index in range(9))], (6, 2, 64), 16, 5)
    pools = native_pools(case.pools, 6, KvType.FLOAT16)
    together = attend(kernels, case.q, pools, case.rows, 0)
    cu_seqlens_q, kv_lens, table = case.rows
    at = 0
    for row in range(len(kv_lens)):
        for query in range(cu_seqlens_q[row + 1] - cu_seqlens_q[row]):
            seen = kv_lens[row] - (cu_seqlens_q[row + 1] - cu_seqlens_q[row]) + query + 1
            alone = (np.array([0, 1], np.int32), np.array([seen], np.int32), table[row : row + 1])
            assert torch.equal(attend(kernels, case.q[at : at + 1], pools, alone, 0)[0], together[at])
            at += 1
