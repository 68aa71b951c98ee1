"""The attention kernels, in Triton's interpreter, under the contract that every implementation is held to."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from services.executor.cuda import gather_attention
from services.executor.cuda.plan import TILE, DevicePlan, count_splits, long_rows_of, running_sums, tiles_of
from services.executor.kv_cache import Pools
from tests.unit.executor.test_attention import Case

pytest.importorskip("triton", reason="triton has no wheel for this machine")

from services.executor.cuda import attention_kernels

ROWS = {
    "one row": [(1, 13)],
    "decode": [(1, 1), (1, 4), (1, 5), (1, 150)],
    "whole prompts": [(4, 4), (TILE + 3, TILE + 3)],
    "chunks with a prefix": [(3, 8), (2, 70), (TILE, 2 * TILE + 1)],
    "a mixture": [(1, 9), (1, 1), (7, 7), (33, 64), (1, 30), (2, 3)],
}
HEADS = [(9, 3, 64), (4, 4, 16), (8, 2, 128), (2, 1, 24)]


def plan_of(case: Case, num_splits: int) -> DevicePlan:
    counts = np.diff(case.cu_seqlens_q)
    return DevicePlan(
        cu_seqlens_q=torch.from_numpy(case.cu_seqlens_q),
        cu_seqlens_k=torch.from_numpy(running_sums(case.kv_lens)),
        kv_lens=torch.from_numpy(case.kv_lens),
        block_table=torch.from_numpy(case.block_table),
        decode_rows=torch.from_numpy(np.flatnonzero(counts == 1).astype(np.int32)),
        tiles=torch.from_numpy(tiles_of(counts.astype(np.int32))),
        long_rows=long_rows_of(case.cu_seqlens_q, case.kv_lens),
        max_q=int(counts.max()),
        max_kv=int(case.kv_lens.max()),
        num_splits=num_splits,
    )


CASES = [
    ("one row", HEADS[0], 1, 0),
    ("one row", HEADS[2], 16, 3),
    ("decode", HEADS[0], 3, 5),
    ("decode", HEADS[2], 2, 70),
    ("decode", HEADS[3], 16, 1),
    ("whole prompts", HEADS[1], 1, 0),
    ("chunks with a prefix", HEADS[1], 2, 70),
    ("chunks with a prefix", HEADS[3], 1, 0),
    ("a mixture", HEADS[0], 3, 0),
    ("a mixture", HEADS[3], 4, 6),
]


@pytest.mark.parametrize(("rows", "heads", "num_splits", "window"), CASES)
def test_attention_sees_exactly_what_it_may(
    rows: str, heads: tuple[int, int, int], num_splits: int, window: int
) -> None:
    case = Case(ROWS[rows], heads, seed=len(rows), window=window)
    found = attention_kernels.attend(case.q, case.pools, plan_of(case, num_splits), window)
    torch.testing.assert_close(found, case.expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "heads", "num_splits", "window"), CASES)
def test_gathering_sees_the_same(rows: str, heads: tuple[int, int, int], num_splits: int, window: int) -> None:
    case = Case(ROWS[rows], heads, seed=len(rows), window=window)
    found = gather_attention.attend(case.q, case.pools, plan_of(case, num_splits), window)
    torch.testing.assert_close(found, case.expected, rtol=1e-4, atol=1e-5)


def test_queries_may_lie_among_keys_and_values() -> None:
    """As they do after the rotation: a token's row is longer than its queries."""
    case = Case(ROWS["a mixture"], HEADS[0], seed=1)
    wide = torch.full((len(case.q), 15, 64), torch.nan)
    wide[:, :9] = case.q
    found = attention_kernels.attend(wide[:, :9], case.pools, plan_of(case, 2))
    torch.testing.assert_close(found, case.expected, rtol=1e-4, atol=1e-5)


def test_half_precision_stays_within_its_own_error() -> None:
    case = Case(ROWS["a mixture"], HEADS[0], seed=2)
    pools = Pools(case.pools.keys.half(), case.pools.values.half())
    found = attention_kernels.attend(case.q.half(), pools, plan_of(case, 2))
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), case.expected, rtol=1e-2, atol=1e-2)


def test_a_padding_row_sees_position_0_of_block_0_and_a_row_is_the_same_beside_it() -> None:
    case = Case([(1, 9), (1, 6)], HEADS[0], seed=3)
    plan = plan_of(case, 4)
    for pool in case.pools:
        pool[0].fill_(1.0)
    padded = replace(
        plan,
        cu_seqlens_q=torch.arange(4, dtype=torch.int32),
        kv_lens=torch.cat((plan.kv_lens, torch.ones(1, dtype=torch.int32))),
        block_table=torch.cat((plan.block_table, torch.zeros(1, plan.block_table.shape[1], dtype=torch.int32))),
        decode_rows=torch.arange(3, dtype=torch.int32),
    )
    found = attention_kernels.attend(torch.cat((case.q, torch.zeros_like(case.q[:1]))), case.pools, padded)
    assert torch.equal(found[:2], attention_kernels.attend(case.q, case.pools, plan))
    torch.testing.assert_close(found[2], torch.ones_like(found[2]))


def test_no_tokens_are_no_matter() -> None:
    case = Case([(1, 2)], HEADS[1], seed=4)
    plan = replace(plan_of(case, 1), decode_rows=torch.zeros(0, dtype=torch.int32))
    assert attention_kernels.attend(case.q[:0], case.pools, plan).shape == (0, 4, 16)


def test_the_tiles_cover_every_query_of_the_longer_rows_once() -> None:
    assert tiles_of(np.array([1, TILE, 1, TILE + 1, 2], np.int32)).tolist() == [[1, 0], [3, 0], [3, TILE], [4, 0]]
    assert tiles_of(np.array([1, 1], np.int32)).shape == tiles_of(np.zeros(0, np.int32)).shape == (0, 2)


@pytest.mark.parametrize(
    ("num_rows", "num_kv_heads", "expected"),
    [(1, 8, 16), (4, 8, 8), (16, 8, 2), (33, 8, 1), (3, 8, 8), (256, 3, 1), (0, 1, 16)],
)
def test_rows_are_cut_where_they_alone_do_not_keep_the_device_busy(
    num_rows: int, num_kv_heads: int, expected: int
) -> None:
    assert count_splits(num_rows, num_kv_heads, num_processors=132) == expected
