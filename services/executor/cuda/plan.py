"""What attention on a device knows of a step's rows: the same as on the host, in tensors, and how its work is cut up.

Rows of one query are decode rows; the queries of the others are cut into tiles. Nothing of it is ever read back.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from services.executor.batch import I32

TILE = 64  # queries of one row that one program computes
# Programs that keep a GPU busy: twice its multiprocessors. Longer rows are cut into as many stretches as that takes.
_PROGRAMS_PER_PROCESSOR = 2
_MOST_SPLITS = 16


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """R rows, W blocks of the longest. All tensors int32 on the device."""

    cu_seqlens_q: Tensor  # [R + 1]
    kv_lens: Tensor  # [R]
    block_table: Tensor  # [R, W], its rows perhaps further apart than W
    decode_rows: Tensor  # [n] rows of one query
    tiles: Tensor  # [n, 2] row and first query of each tile of the other rows
    max_q: int  # the most queries of a row
    max_kv: int  # a bound of kv_lens
    num_splits: int  # stretches that the positions of a decode row are cut into


def tiles_of(counts: I32) -> I32:
    """[n, 2] the tiles of rows with more than one query; counts: [R] queries of each row."""
    rows = np.flatnonzero(counts > 1)
    per_row = -(-counts[rows] // TILE)
    firsts = np.arange(int(per_row.sum())) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    return np.stack((np.repeat(rows, per_row), firsts * TILE), axis=1).astype(np.int32)


def count_splits(num_rows: int, num_kv_heads: int, num_processors: int) -> int:
    """Stretches for each decode row: 1 where rows alone keep the device busy, else as many as that takes.

    Never told by the rows' lengths, so a captured launch fits every step of as many rows.
    """
    num_programs = max(num_rows, 1) * num_kv_heads
    return min(max(num_processors * _PROGRAMS_PER_PROCESSOR // num_programs, 1), _MOST_SPLITS)
