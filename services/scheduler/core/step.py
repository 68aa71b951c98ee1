"""One step: the draft of a plan while it is built, and the record kept until its result arrives.

The record names Runs, never slots, so a late result finds exactly the stay it was computed for.
"""

from array import array

from services.scheduler.core.sequence import Run
from services.wire import columns
from services.wire.messages import AppendBlocks, Op, RowFlag, StepPlan

_SAMPLE = int(RowFlag.SAMPLE | RowFlag.LAST_CHUNK)
_FUTURE = int(RowFlag.SAMPLE | RowFlag.FUTURE_INPUT)


class StepRecord:
    """rows: every row in wire order. added: the rows that were not carried, with their token counts; the last
    len(added) of `rows`. samples: whether each of those put a token out; every carried row does."""

    __slots__ = ("added", "rows", "samples", "size", "step")

    def __init__(
        self, step: int, rows: list[Run], added: list[tuple[Run, int]], samples: list[bool], size: tuple[int, int]
    ) -> None:
        self.step = step
        self.rows = rows
        self.added = added
        self.samples = samples
        self.size = size  # new tokens, and KV positions held: what its duration depends on

    def samplers(self, failed: frozenset[int]) -> list[Run]:
        """The rows that put a token out, in order; failed: indices of rows that did not."""
        if all(self.samples) and not failed:
            return self.rows
        samples = [True] * (len(self.rows) - len(self.added)) + self.samples
        return [run for index, run in enumerate(self.rows) if samples[index] and index not in failed]


class Draft:
    """Block appends and added rows, gathered column by column.

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
        self.granted: dict[Run, None] = {}  # who is in this plan already, and so cannot be preempted by it
        self._append_slots: list[int] = []
        self._append_starts: list[int] = []
        self._append_blocks: list[int] = []
        self._flags = array("i")
        self._positions = array("i")
        self._host_tokens = array("i")

    def append_blocks(self, run: Run, blocks: list[int]) -> None:
        """Blocks join the run's table, in it and on the executor."""
        start = len(run.blocks)
        run.blocks.extend(blocks)
        self._append_slots.extend([run.slot] * len(blocks))
        self._append_starts.extend(range(start, start + len(blocks)))
        self._append_blocks.extend(blocks)

    def add_row(self, run: Run, count: int) -> None:
        """A row that is not carried: the next `count` tokens. Advances P; the row samples iff it reaches L + F."""
        tokens = run.sequence.tokens
        position = run.planned
        samples = count == run.num_wanted
        is_future = count == 1 and run.last_sampled_step > 0
        if not is_future:
            self._host_tokens.extend(tokens[position : position + count])
        self._positions.append(position)
        self._flags.append(_FUTURE if is_future else _SAMPLE if samples else 0)
        self.added.append((run, count))
        self.samples.append(samples)
        run.planned = position + count
        run.last_planned_step = self.step
        if samples:
            run.last_sampled_step = self.step

    def plan(self, epoch: int, ops: list[Op], dropped: list[int]) -> StepPlan:
        """The message of this draft; block appends come after the other ops."""
        if self._append_slots:
            ops.append(
                AppendBlocks(
                    columns.pack(self._append_slots),
                    columns.pack(self._append_starts),
                    columns.pack(self._append_blocks),
                )
            )
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
