"""From StepPlan to StepBatch: the rows of the last step, minus the dropped, one position on, then the added.

Pure and shared by every backend. It checks the protocol loudly (PlanError) and works on whole columns, so that a
carried row costs no Python of its own; a step of decode rows like the one before it keeps the columns that are alike.
After a PlanError the decoder must be restarted: its mirror is half advanced.
"""

from dataclasses import replace
from typing import NoReturn

import numpy as np

from services.executor.batch import I32, Mask, Rows, StepBatch, pack, pack_next
from services.executor.capacity import Capacity
from services.executor.slots import ANY_POSITION, PlanError, SlotTable, check_slots, read_column
from services.wire.messages import AppendBlocks, RowFlag, StepPlan

_CARRIED = int(RowFlag.SAMPLE | RowFlag.FUTURE_INPUT)
_MASKED = int(RowFlag.MASKED)


class PlanDecoder:
    """Holds what the difference is relative to: the last step's rows, and the slots as they stand after it."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._slots = SlotTable(capacity)
        self._last_rows = _no_rows()
        self._last_step: int | None = None
        self._decoding: StepBatch | None = None  # the last step, if it was of nothing but decode rows

    def restart(self) -> None:
        """A new epoch: no slot lives, the baseline is empty."""
        self._slots.clear()
        self._last_rows = _no_rows()
        self._last_step, self._decoding = None, None

    def decode(self, plan: StepPlan, received_ns: int) -> StepBatch:
        """The batch of the next step; raises PlanError, after which only `restart` may follow."""
        if self._last_step is not None and plan.step != self._last_step + 1:
            raise PlanError(f"step {plan.step} follows step {self._last_step}")
        for op in plan.ops:
            self._slots.apply(op)
        batch = self._next(plan, received_ns) or self._changed(plan, received_ns)
        self._slots.next_positions[batch.slots] = batch.kv_lens
        self._last_step = plan.step
        return batch

    def _next(self, plan: StepPlan, received_ns: int) -> StepBatch | None:
        """The next step of the same decode rows; None where the plan changes more, or where a row comes to an end.

        What holds of every row because it held a step ago is not judged again.
        """
        last, table, size = self._decoding, self._slots, self._capacity.block_size
        if last is None or plan.dropped or plan.slots or plan.host_tokens:
            return None
        if not all(isinstance(op, AppendBlocks) for op in plan.ops):
            return None
        ends = last.kv_lens + np.int32(1)
        rooms = np.minimum(table.num_blocks[last.slots] * size, self._capacity.card.context_length)
        if (ends > rooms).any():
            return None
        self._last_rows = replace(self._last_rows, positions=last.kv_lens)
        self._decoding = pack_next(last, ends, table.block_tables, size, received_ns)
        return self._decoding

    def _changed(self, plan: StepPlan, received_ns: int) -> StepBatch:
        rows = self._rows(plan)
        self._check(rows)
        self._slots.has_sampled[rows.slots] |= rows.samples
        self._last_rows = rows
        batch = pack(rows, self._slots.block_tables, self._capacity.block_size, plan.step, received_ns)
        self._decoding = batch if rows.are_decoding else None
        return batch

    def _rows(self, plan: StepPlan) -> Rows:
        """The rows of this step, not yet judged save for what is needed to put them together."""
        last, kept = self._last_rows, self._kept(plan.dropped)
        carried = last.slots[kept]
        if not last.samples[kept].all():
            stray = carried[~last.samples[kept]][0]
            raise PlanError(f"slot {stray}: a row that did not sample is carried")
        slots, counts = read_column(plan.slots), read_column(plan.counts)
        positions, flags = read_column(plan.positions), read_column(plan.flags)
        generations = read_column(plan.generations)
        if not len(slots) == len(generations) == len(positions) == len(counts) == len(flags):
            raise PlanError("the columns of the added rows differ in length")
        ones = np.ones(len(carried), np.int32)
        return Rows(
            slots=np.concatenate((carried, slots)),
            generations=np.concatenate((last.generations[kept], generations)),
            positions=np.concatenate((last.positions[kept] + last.counts[kept], positions)),
            counts=np.concatenate((ones, counts)),
            flags=np.concatenate(((last.flags[kept] & np.int32(_MASKED)) | np.int32(_CARRIED), flags)),
            host_tokens=read_column(plan.host_tokens),
        )

    def _kept(self, dropped: bytes) -> Mask:
        kept = np.ones(len(self._last_rows), np.bool_)
        indices = read_column(dropped)
        if len(indices) and (indices.min() < 0 or indices.max() >= len(kept)):
            raise PlanError(f"dropped: row {indices.max()} of a step of {len(kept)} rows")
        kept[indices] = False
        return kept

    def _check(self, rows: Rows) -> None:
        """Raise PlanError unless every row continues its slot, within its blocks, each slot at most once."""
        table = self._slots
        check_slots(rows.slots, table.generations, "row")
        context_length, futures = self._capacity.card.context_length, rows.futures
        order = np.arange(len(rows))
        seen = np.zeros(len(table.generations), np.int64)
        seen[rows.slots] = order
        due, has_sampled = table.next_positions[rows.slots], table.has_sampled[rows.slots]
        ends = rows.positions + rows.counts
        breaches = {
            "another generation lives here": rows.generations != table.generations[rows.slots],
            "two rows in one step": seen[rows.slots] != order,
            "a row without a token": rows.counts < 1,
            "not the continuation": (rows.positions != due) & (due != ANY_POSITION),
            "past the context": (rows.positions < 0) | (rows.positions >= context_length) | (ends > context_length),
            "past its last block": ends > table.num_blocks[rows.slots] * self._capacity.block_size,
            "a future token before anything was sampled": futures & ~has_sampled,
            "a future token among others": futures & (rows.counts != 1),
            "host tokens after a token was sampled": ~futures & has_sampled,
        }
        if np.array(list(breaches.values())).any():
            _refuse(rows, breaches)
        self._check_tokens(rows.host_tokens, int(rows.counts[~futures].sum()))

    def _check_tokens(self, tokens: I32, due: int) -> None:
        if len(tokens) != due:
            raise PlanError(f"{len(tokens)} host tokens for rows of {due}")
        vocab_size = self._capacity.card.vocab_size
        if due and (tokens.min() < 0 or tokens.max() >= vocab_size):
            stray = tokens[(tokens < 0) | (tokens >= vocab_size)][0]
            raise PlanError(f"token {stray} is not within 0..{vocab_size - 1}")


def _refuse(rows: Rows, breaches: dict[str, Mask]) -> NoReturn:
    """Raise PlanError about the first breach that there is, naming its first row."""
    why, wrong = next((why, wrong) for why, wrong in breaches.items() if wrong.any())
    row = int(wrong.argmax())
    raise PlanError(
        f"row {row}: slot {rows.slots[row]} generation {rows.generations[row]} "
        f"position {rows.positions[row]} count {rows.counts[row]}: {why}"
    )


def _no_rows() -> Rows:
    empty = np.zeros(0, np.int32)
    return Rows(empty, empty, empty, empty, empty, empty)
