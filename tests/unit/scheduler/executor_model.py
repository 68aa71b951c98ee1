"""An executor written a second time, straight from the contract, to check the scheduler against.

KV cells hold (position, rolling hash of all tokens up to there); a row reads every cell before it back through its
block table, so a stale, early, freed or shared block changes a token or trips an assertion. Executes plans in order
when told to, which places events inside the window.
"""

from collections import deque
from dataclasses import dataclass, field

from services.wire import columns
from services.wire.messages import (
    AppendBlocks,
    CopyBlocks,
    CopyDirection,
    FailedRow,
    FailureReason,
    Hello,
    Logprobs,
    ModelCard,
    Op,
    Ready,
    RowFlag,
    SlotInit,
    SlotRetire,
    StepPlan,
    StepResult,
    StepStatus,
)

VOCAB = 50
MODULUS = (1 << 61) - 1


def absorb_token(state: int, token: int, position: int) -> int:
    return (state * 1_000_003 + token * 7919 + position + 1) % MODULUS


def draw(state: int, seed: int) -> int:
    """The token that follows a history: a pure function of it and the seed; never 0 or 1."""
    return 2 + (state ^ (seed * 0x9E3779B9)) % (VOCAB - 2)


def continuation(prompt: list[int], seed: int, count: int) -> list[int]:
    """What a request alone would get."""
    state = 0
    for position, token in enumerate(prompt):
        state = absorb_token(state, token, position)
    tokens: list[int] = []
    for position in range(len(prompt), len(prompt) + count):
        tokens.append(draw(state, seed))
        state = absorb_token(state, tokens[-1], position)
    return tokens


@dataclass
class Slot:
    generation: int
    seed: int
    num_prompt_tokens: int
    table: list[int] = field(default_factory=list)
    last_token: int | None = None
    next_position: int | None = None
    judge: int | None = None  # the position whose token the last row's last state judges
    is_poisoned: bool = False


POISON = -1  # the chain of a cell whose value is not finite


class ExecutorModel:
    """Plans queue up in `plans`; `step()` runs the oldest and returns its result.

    copy_lag: steps a copy outlasts the one that ordered it.
    """

    def __init__(
        self,
        instance: int,
        num_blocks: int,
        block_size: int,
        max_rows: int,
        context_length: int,
        num_host_blocks: int = 0,
        copy_lag: int = 0,
    ) -> None:
        self.instance, self.num_blocks, self.block_size = instance, num_blocks, block_size
        self.max_rows, self.context_length, self.num_host_blocks = max_rows, context_length, num_host_blocks
        # Ordered and not done, with the step that ordered it; each takes effect as late as it may.
        self.copies: deque[tuple[CopyBlocks, int]] = deque()
        self.copy_lag = copy_lag
        self.host_cells: dict[tuple[int, int], tuple[int, int]] = {}
        self.epoch = 0
        self.has_failed = False
        self.plans: deque[StepPlan] = deque()
        self.slots: dict[int, Slot] = {}
        self.rows: list[int] = []
        self.cells: dict[tuple[int, int], tuple[int, int]] = {}
        self.seen: set[tuple[int, int]] = set()
        self.num_steps = 0

    def ready(self, epoch: int) -> Ready:
        card = ModelCard("model", VOCAB, self.context_length, (1,))
        sizes = (self.num_blocks, self.block_size, self.max_rows, 1)
        return Ready(epoch, self.instance, *sizes, card, num_host_blocks=self.num_host_blocks)

    def hello(self, hello: Hello) -> Ready:
        self.epoch = hello.epoch
        self.has_failed = False
        while self.copies:
            self._copy(self.copies.popleft()[0])
        self.plans.clear()
        self.slots.clear()
        self.rows = []
        self.seen = set()
        return self.ready(hello.epoch)

    def receive(self, plan: StepPlan) -> None:
        assert plan.epoch == self.epoch, "a plan before its Hello was answered"
        self.plans.append(plan)

    def step(self, *, fails: bool = False, poison: int | None = None) -> StepResult:
        """Run the oldest plan. fails: the step fails. poison: the index of a row whose logits are not finite."""
        plan = self.plans.popleft()
        if fails or self.has_failed:
            self.has_failed = True
            return StepResult(plan.epoch, plan.step, StepStatus.FAILED, detail="injected")
        self.num_steps += 1
        for op in plan.ops:
            self._apply(op)
        copies_done = self._end_copies(must_end=not plan.slots and len(self.rows) == len(columns.unpack(plan.dropped)))
        rows = self._rows(plan)
        self.rows = [slot for slot, *_ in rows]
        assert len(set(self.rows)) == len(self.rows), "a slot has two rows"
        tokens: list[int] = []
        n_out: list[int] = []
        failed: list[FailedRow] = []
        scored: list[tuple[int, int]] = []
        for index, (slot, position, count, flags, inputs) in enumerate(rows):
            state = self._forward(self.slots[slot], position, count, inputs)
            if flags & RowFlag.PROMPT_LOGPROBS:
                scored += [(index, token) for token in _judged(self.slots[slot], position, inputs)]
            self.slots[slot].judge = position + count
            if index == poison or self.slots[slot].is_poisoned:
                self._poison(self.slots[slot], position, count)
                failed.append(FailedRow(index, FailureReason.POISONED_ROW, "not finite"))
                n_out.append(0)
            elif flags & RowFlag.SAMPLE:
                self.slots[slot].last_token = draw(state, self.slots[slot].seed)
                tokens.append(draw(state, self.slots[slot].seed))
                n_out.append(1)
            else:
                n_out.append(0)
        return StepResult(
            plan.epoch,
            plan.step,
            StepStatus.OK,
            columns.pack(tokens),
            columns.pack(n_out),
            prompt_logprobs=_certain(scored) if scored else None,
            failed_rows=tuple(failed),
            copies_done=columns.pack(copies_done),
        )

    def _apply(self, op: Op) -> None:
        if isinstance(op, SlotInit):
            assert 1 <= op.slot <= self.max_rows and op.slot not in self.slots, "a slot begins while it is held"
            assert (op.slot, op.generation) not in self.seen, "a generation is used again"
            self.seen.add((op.slot, op.generation))
            self.slots[op.slot] = Slot(op.generation, op.seed, op.num_prompt_tokens)
        elif isinstance(op, SlotRetire):
            assert self.slots.pop(op.slot).generation == op.generation
        elif isinstance(op, AppendBlocks):
            appended = zip(columns.unpack(op.slots), columns.unpack(op.starts), columns.unpack(op.blocks), strict=True)
            for slot, start, block in appended:
                assert len(self.slots[slot].table) == start and 1 <= block < self.num_blocks
                self.slots[slot].table.append(block)
        elif op.direction == CopyDirection.WITHIN:
            self._copy(op)
        else:
            self.copies.append((op, self.num_steps))

    def _end_copies(self, must_end: bool) -> list[int]:
        """Copies end in order, copy_lag steps after the one that ordered them; a step without rows waits for one."""
        done: list[int] = []
        while self.copies and (self.copies[0][1] + self.copy_lag <= self.num_steps or (must_end and not done)):
            copy, _ = self.copies.popleft()
            self._copy(copy)
            done.append(copy.copy)
        return done

    def _copy(self, copy: CopyBlocks) -> None:
        device, host = (self.cells, self.num_blocks), (self.host_cells, self.num_host_blocks)
        here, num_here = host if copy.direction == CopyDirection.IN else device
        there, num_there = host if copy.direction == CopyDirection.OUT else device
        pairs = zip(columns.unpack(copy.sources), columns.unpack(copy.destinations), strict=True)
        for source, destination in pairs:
            assert 0 <= source < num_here and 0 <= destination < num_there
            for offset in range(self.block_size):
                there.pop((destination, offset), None)
                if (source, offset) in here:
                    there[destination, offset] = here[source, offset]

    def _rows(self, plan: StepPlan) -> list[tuple[int, int, int, int, list[int]]]:
        """(slot, position, count, flags, inputs) of each row; the difference applied."""
        dropped = set(columns.unpack(plan.dropped))
        rows: list[tuple[int, int, int, int, list[int]]] = []
        for index, slot in enumerate(self.rows):
            if index not in dropped:
                state = self.slots[slot]
                assert state.next_position is not None and state.last_token is not None, "carried, but never sampled"
                flags = int(RowFlag.SAMPLE | RowFlag.FUTURE_INPUT)
                rows.append((slot, state.next_position, 1, flags, [state.last_token]))
        host = list(columns.unpack(plan.host_tokens))
        added = [columns.unpack(c) for c in (plan.slots, plan.generations, plan.positions, plan.counts, plan.flags)]
        for slot, generation, position, count, flags in zip(*added, strict=True):
            state = self.slots[slot]
            assert state.generation == generation and count >= 1
            if flags & RowFlag.FUTURE_INPUT:
                assert count == 1 and state.last_token is not None, "a future that nobody has sampled"
                inputs = [state.last_token]
            else:
                inputs, host = host[:count], host[count:]
                assert len(inputs) == count
            rows.append((slot, position, count, flags, inputs))
        assert not host, "host tokens left over"
        return rows

    def _poison(self, slot: Slot, position: int, count: int) -> None:
        """The row's cells are not finite, and whoever reads them would not be either."""
        slot.is_poisoned = True
        slot.last_token = 0
        for p in range(position, position + count):
            self.cells[slot.table[p // self.block_size], p % self.block_size] = (p, POISON)

    def _forward(self, slot: Slot, position: int, count: int, inputs: list[int]) -> int:
        assert slot.next_position in (None, position), "a row does not go on where its slot stopped"
        assert position + count <= len(slot.table) * self.block_size, "a position without a block"
        state = 0
        for p in range(position):
            cell = self.cells.get((slot.table[p // self.block_size], p % self.block_size))
            assert cell is not None and cell[0] == p, "a stale or missing cell"
            assert cell[1] != POISON or slot.is_poisoned, "the KV of a poisoned row is read by another"
            state = cell[1]
        for p, token in enumerate(inputs, position):
            state = absorb_token(state, token, p)
            self.cells[slot.table[p // self.block_size], p % self.block_size] = (p, state)
        slot.next_position = position + count
        return state


def _judged(slot: Slot, position: int, inputs: list[int]) -> list[int]:
    """The prompt tokens of a row that a state before them judges: not the first, unless the last row was its chunk."""
    first = position if slot.judge == position else position + 1
    return inputs[first - position : max(slot.num_prompt_tokens - position, 0)]


def _certain(scored: list[tuple[int, int]]) -> Logprobs:
    """Each token alone, by its row."""
    rows, tokens = zip(*scored, strict=True)
    ones = columns.pack([1] * len(rows))
    return Logprobs(columns.pack(rows), ones, columns.pack(tokens), ones, columns.pack_floats([0.0] * len(rows)))
