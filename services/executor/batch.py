"""The batch of one step: the rows of a plan as packed arrays, the new tokens of all rows in one dimension.

Plain numpy, shared by every backend; nothing of it changes after it was built, so it may be prepared while the step
before it still runs. Shapes: R rows, T new tokens, W blocks of the longest row.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from services.wire.messages import RowFlag

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

_SAMPLE = int(RowFlag.SAMPLE)
_FUTURE_INPUT = int(RowFlag.FUTURE_INPUT)
_MASKED = int(RowFlag.MASKED)
_DECODE = _SAMPLE | _FUTURE_INPUT
_MASKED_SAMPLE = int(RowFlag.MASKED | RowFlag.SAMPLE)
_PROMPT_LOGPROBS = int(RowFlag.PROMPT_LOGPROBS)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one step, one entry each, in the order in which results are reported."""

    slots: I32
    generations: I32
    positions: I32  # of the row's first new token
    counts: I32
    flags: I32
    host_tokens: I32  # inputs of the rows that are not FUTURE_INPUT, concatenated

    @property
    def samples(self) -> Mask:
        mask: Mask = (self.flags & _SAMPLE) != 0
        return mask

    @property
    def futures(self) -> Mask:
        mask: Mask = (self.flags & _FUTURE_INPUT) != 0
        return mask

    @property
    def are_decoding(self) -> bool:
        """Whether each is a future token that is sampled from, and nothing else is asked of it."""
        return bool(((self.flags & ~_MASKED) == _DECODE).all())

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Everything a backend needs to run one step; see the module docstring for the shapes."""

    step: int
    received_ns: int  # when the plan arrived, CLOCK_MONOTONIC
    slots: I32  # [R]
    positions: I32  # [R]
    counts: I32  # [R]
    kv_lens: I32  # [R] positions that exist once the new tokens are written
    sampling_rows: I64  # rows whose last token is sampled from, rising
    future_rows: I64  # rows whose one input is last_token[slot], rising
    prompt_logprob_rows: I64  # rows whose prompt tokens are scored, rising
    masked_rows: I64  # sampling rows that may not draw every token, rising
    block_tables: I32  # [R, W]; entries past a row's last block mean nothing
    cu_seqlens_q: I32  # [R + 1] where each row's new tokens begin, then T
    token_ids: I64  # [T]; 0 where a future token belongs
    position_ids: I64  # [T]
    slot_mapping: I64  # [T] flat index of the KV cell that each new token is written to

    @property
    def num_rows(self) -> int:
        return len(self.slots)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def last_tokens(self) -> I64:
        """[R] where each row's last new token lies in the packed dimension."""
        return self.cu_seqlens_q[1:].astype(np.int64) - 1


def pack(rows: Rows, tables: I32, block_size: int, step: int, received_ns: int) -> StepBatch:
    """Lay the rows out. tables: the block table of every slot, [slots, blocks]."""
    num_rows = len(rows)
    kv_lens = rows.positions + rows.counts
    width = -(-int(kv_lens.max(initial=0)) // block_size)
    block_tables = tables[rows.slots, :width]
    cu_seqlens_q = np.zeros(num_rows + 1, np.int32)
    np.cumsum(rows.counts, out=cu_seqlens_q[1:])
    row_of = np.repeat(np.arange(num_rows), rows.counts)
    position_ids = np.arange(len(row_of)) + (rows.positions - cu_seqlens_q[:-1])[row_of]
    futures = rows.futures
    token_ids = np.zeros(len(row_of), np.int64)
    token_ids[~futures[row_of]] = rows.host_tokens
    return StepBatch(
        step=step,
        received_ns=received_ns,
        slots=rows.slots,
        positions=rows.positions,
        counts=rows.counts,
        kv_lens=kv_lens,
        sampling_rows=np.flatnonzero(rows.samples),
        future_rows=np.flatnonzero(futures),
        prompt_logprob_rows=np.flatnonzero(rows.flags & _PROMPT_LOGPROBS),
        masked_rows=np.flatnonzero((rows.flags & _MASKED_SAMPLE) == _MASKED_SAMPLE),
        block_tables=block_tables,
        cu_seqlens_q=cu_seqlens_q,
        token_ids=token_ids,
        position_ids=position_ids,
        slot_mapping=block_tables[row_of, position_ids // block_size].astype(np.int64) * block_size
        + position_ids % block_size,
    )


def pack_next(last: StepBatch, ends: I32, tables: I32, block_size: int, received_ns: int) -> StepBatch:
    """The step after one of decode rows, with the same rows one position on. ends: [R] their kv_lens then."""
    position_ids = last.kv_lens.astype(np.int64)
    block_tables = tables[last.slots, : -(-int(ends.max(initial=0)) // block_size)]
    blocks = block_tables[np.arange(len(ends)), position_ids // block_size].astype(np.int64)
    return replace(
        last,
        step=last.step + 1,
        received_ns=received_ns,
        positions=last.kv_lens,
        kv_lens=ends,
        block_tables=block_tables,
        position_ids=position_ids,
        slot_mapping=blocks * block_size + position_ids % block_size,
    )
