"""One step: the draft of a plan while it is built, and the record kept until its result arrives.

The record names Runs, never slots, so a late result finds exactly the stay it was computed for.
"""

from array import array

from services.scheduler.core.sequence import Run
from services.wire import columns
from services.wire.messages import AppendBlocks, CopyBlocks, CopyDirection, Op, RowFlag, StepPlan

NO_NUMBER = 0  # of a copy that is not reported: it is over when its step is
_SAMPLE = int(RowFlag.SAMPLE | RowFlag.LAST_CHUNK)
_FUTURE = int(RowFlag.SAMPLE | RowFlag.FUTURE_INPUT)
_MASKED = int(RowFlag.MASKED)


class StepRecord:
    """rows: every row in wire order. added: the rows that were not carried, with their token counts; the last
    len(added) of `rows`. samples: whether each of those put a token out; every carried row does. ends: the position
    each of those goes up to. copied: the forks of this step, with the positions of the tails that it copies."""

    __slots__ = ("added", "copied", "ends", "rows", "samples", "size", "step")

    def __init__(self, draft: "Draft", rows: list[Run], size: tuple[int, int]) -> None:
        self.step = draft.step
        self.rows = rows
        self.added = draft.added
        self.samples = draft.samples
        self.ends = draft.ends
        self.copied = draft.copied
        self.size = size  # new tokens, and KV positions held: what its duration depends on

    def samplers(self, failed: frozenset[int]) -> list[Run]:
        """The rows that put a token out, in order; failed: indices of rows that did not."""
        if all(self.samples) and not failed:
            return self.rows
        samples = [True] * (len(self.rows) - len(self.added)) + self.samples
        return [run for index, run in enumerate(self.rows) if samples[index] and index not in failed]


class Draft:
    """Block appends, copied tails and added rows, gathered column by column.

    num_preemptions: the state's count when the plan was begun. budget: tokens left for prefill. has_joined: somebody
    has come from the waiting. has_displaced: somebody gave way to the waiting.
    """

    def __init__(self, step: int, num_preemptions: int) -> None:
        self.step = step
        self.num_preemptions = num_preemptions
        self.budget = 0
        self.has_joined = False
        self.has_displaced = False
        self.added: list[tuple[Run, int]] = []
        self.samples: list[bool] = []
        self.ends: list[int] = []
        self.copied: list[tuple[Run, int]] = []
        self.granted: dict[Run, None] = {}  # who is in this plan already, and so cannot be preempted by it
        self._append_slots: list[int] = []
        self._append_starts: list[int] = []
        self._append_blocks: list[int] = []
        self._tails: list[int] = []
        self._copies: list[int] = []
        self._flags = array("i")
        self._positions = array("i")
        self._host_tokens = array("i")

    def append_blocks(self, run: Run, blocks: list[int]) -> None:
        """Blocks join the run's table, in it and on the executor."""
        start = len(run.blocks)
        self._append_slots += [run.slot] * len(blocks)
        self._append_starts += range(start, start + len(blocks))
        run.blocks += blocks
        self._append_blocks += blocks

    def append_block_each(self, runs: list[Run], blocks: list[int]) -> None:
        """One block joins the table of each run."""
        self.granted.update(dict.fromkeys(runs))
        self._append_slots += [run.slot for run in runs]
        self._append_starts += [len(run.blocks) for run in runs]
        self._append_blocks += blocks
        for run, block in zip(runs, blocks, strict=True):
            run.blocks.append(block)

    def copy_tail(self, run: Run, tail: int, num_positions: int) -> None:
        """The run's last block becomes a copy of this one, of which it uses the positions up to so many. They count as
        planned: the executor has them only once it has run this step."""
        self._tails.append(tail)
        self._copies.append(run.blocks[-1])
        self.copied.append((run, num_positions - run.planned))
        run.planned = num_positions

    def add_row(self, run: Run, count: int) -> None:
        """A row that is not carried: the next `count` tokens. Advances P; the row samples iff it reaches L + F."""
        sequence = run.sequence
        position = run.planned
        end = position + count
        samples = end >= len(run.tokens)
        is_future = count == 1 and run.last_sampled_step > 0
        if not is_future:
            self._host_tokens.extend(run.tokens[position:end])
        self._positions.append(position)
        flags = _FUTURE if is_future else _SAMPLE if samples else 0
        if not sequence.is_scored and position < sequence.num_prompt_tokens:
            flags |= RowFlag.PROMPT_LOGPROBS
        if sequence.constraint is not None:
            flags |= _MASKED
        self._flags.append(flags)
        self.ends.append(end)
        self.added.append((run, count))
        self.samples.append(samples)
        run.planned = end
        run.last_planned_step = self.step
        if samples:
            run.last_sampled_step = self.step

    def plan(self, epoch: int, ops: list[Op], dropped: list[int]) -> StepPlan:
        """The message of this draft; block appends and the copies of tails come after the other ops."""
        if self._append_slots:
            ops.append(
                AppendBlocks(
                    columns.pack(self._append_slots),
                    columns.pack(self._append_starts),
                    columns.pack(self._append_blocks),
                )
            )
        if self._tails:
            tails, copies = columns.pack(self._tails), columns.pack(self._copies)
            ops.append(CopyBlocks(NO_NUMBER, CopyDirection.WITHIN, tails, copies))
        return StepPlan(
            epoch=epoch,
            step=self.step,
            ops=tuple(ops),
            dropped=columns.pack(dropped),
            slots=columns.pack([run.slot for run, _ in self.added]),
            generations=columns.pack([run.generation for run, _ in self.added]),
            positions=self._positions.tobytes(),
            counts=columns.pack([count for _, count in self.added]),
            flags=self._flags.tobytes(),
            host_tokens=self._host_tokens.tobytes(),
        )
