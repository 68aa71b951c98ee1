"""What attention on a device knows of a step's rows: the same as on the host, in tensors, and how its work is cut up.

Rows of one query are decode rows; the others are long ones, whose queries are cut into tiles. Nothing of it is ever
read back: what an implementation must know on the host is here as numbers.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from services.executor.batch import I32

TILE = 64  # queries of one row that one program computes
# Programs that keep a GPU busy: twice its multiprocessors. Longer rows are cut into as many stretches as that takes.
_PROGRAMS_PER_PROCESSOR = 2
_MOST_SPLITS = 16


class LongRow(NamedTuple):
    """A row of several queries: which one, where they begin and how many they are, and all its positions."""

    row: int
    first: int
    num_queries: int
    length: int


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """R rows, W blocks of the longest. All tensors int32 on the device."""

    cu_seqlens_q: Tensor  # [R + 1]
    cu_seqlens_k: Tensor  # [R + 1] running sums of kv_lens
    kv_lens: Tensor  # [R]
    block_table: Tensor  # [R, W], its rows perhaps further apart than W
    decode_rows: Tensor  # [n] rows of one query
    tiles: Tensor  # [n, 2] row and first query of each tile of the long rows
    long_rows: tuple[LongRow, ...]
    max_q: int  # the most queries of a row
    max_kv: int  # a bound of kv_lens
    num_splits: int  # stretches that the positions of a decode row are cut into


def tiles_of(counts: I32) -> I32:
    """[n, 2] the tiles of rows with more than one query; counts: [R] queries of each row."""
    rows = np.flatnonzero(counts > 1)
    per_row = -(-counts[rows] // TILE)
    firsts = np.arange(int(per_row.sum())) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    return np.stack((np.repeat(rows, per_row), firsts * TILE), axis=1).astype(np.int32)


def long_rows_of(cu_seqlens_q: I32, kv_lens: I32) -> tuple[LongRow, ...]:
    """The rows with more than one query."""
    counts = np.diff(cu_seqlens_q)
    return tuple(
        LongRow(row, int(cu_seqlens_q[row]), int(counts[row]), int(kv_lens[row]))
        for row in np.flatnonzero(counts > 1).tolist()
    )


def running_sums(lengths: I32) -> I32:
    """[R] -> [R + 1], from 0."""
    sums = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=sums[1:])
    return sums


def count_splits(num_rows: int, num_kv_heads: int, num_processors: int) -> int:
    """Stretches for each decode row: 1 where rows alone keep the device busy, else as many as that takes.

    Never told by the rows' lengths, so a captured launch fits every step of as many rows. A power of two: each
    number is a kernel of its own, compiled at first use.
    """
    num_programs = max(num_rows, 1) * num_kv_heads
    wanted = min(max(num_processors * _PROGRAMS_PER_PROCESSOR // num_programs, 1), _MOST_SPLITS)
    return 1 << (wanted.bit_length() - 1)
