"""The scheduler's state and the few transitions that change who holds what.

Every record has one home here: live requests by id, the waiting queue, running Runs, the window of unacknowledged
steps. A sequence is waiting, running or ended, never two of them. There is one way off the executor (`end_run`) and
one way to end (`finish`). Knows no budget and no order of service: planner.py decides, this module carries out.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from services.scheduler.core.constraints import Constraints
from services.scheduler.core.credit import Credits
from services.scheduler.core.learning import CopyTime, OutputLength, StepTime
from services.scheduler.core.outbox import Outbox
from services.scheduler.core.policy import Policy, VictimRule, choose_victim
from services.scheduler.core.prefix import PrefixCache
from services.scheduler.core.rate import DrainRate
from services.scheduler.core.sequence import Copy, Request, Run, Sequence, Steps
from services.scheduler.core.step import StepRecord
from services.scheduler.core.step_sizes import StepSizes
from services.scheduler.core.tenant import Tenants
from services.scheduler.core.waiting import WaitingQueue
from services.wire import columns
from services.wire.messages import AppendBlocks, FailureReason, FinishReason, Op, SlotInit, SlotRetire

MAX_GENERATION = 2**31 - 1  # generations travel in a column of int32; by then the first is long forgotten
CANCELLED = (FinishReason.CANCELLED, FailureReason.NONE, "")
LENGTH = (FinishReason.LENGTH, FailureReason.NONE, "")
STOP = (FinishReason.STOP, FailureReason.NONE, "")


class Limits(Struct, frozen=True):
    """Bounds of the scheduler: counts and tokens, each at least 1. chunk_size: most tokens of one prefill row."""

    depth: int
    token_budget: int
    chunk_size: int
    max_num_seqs: int
    max_waiting: int
    max_unread: int
    prefix_cache: bool = True
    preemption: Literal["recompute", "swap", "auto"] = "recompute"
    victim: VictimRule = "lifo"
    forecast: bool = True  # look at block usage to come before anybody joins
    prefill_quantum: int = 0  # tokens of each step that decode rows leave to prefill
    inter_token_us: int = 0  # target for the time of a step with decode rows; 0 = none
    max_preparing: int = 8  # constraints being compiled at once
    head_start: int = 0  # fair: prompt tokens that a tenant back from idleness may be behind the least served


class Capacity(Struct, frozen=True):
    """What the executor said it has. num_blocks counts the dummy; max_rows is also the number of run slots."""

    num_blocks: int
    block_size: int
    max_rows: int
    num_host_blocks: int
    context_length: int
    eos_token_ids: frozenset[int] = frozenset()


class Counters(Struct):
    """Totals since the start."""

    num_steps: int = 0
    num_preemptions: int = 0
    num_wasted_rows: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    num_looked_up_tokens: int = 0
    num_forks: int = 0


NOTHING_YET = Capacity(num_blocks=2, block_size=1, max_rows=0, num_host_blocks=0, context_length=0)


class State:
    """All of it. `capacity` and `pool` are there once an executor has said Ready."""

    def __init__(self, limits: Limits, policy: Policy) -> None:
        self.limits = limits
        self.policy = policy
        self.tenants = Tenants(limits.head_start)
        self.requests: dict[str, Request] = {}
        self.waiting = WaitingQueue(policy)
        self.running: dict[Run, None] = {}  # in order of admission
        self.claims: dict[Run, None] = {}  # running, and to be granted tokens or a block before their next row
        self.last_rows: list[Run] = []  # rows of the last planned step; the baseline of the next difference
        self.full: list[Run] = []  # carried ones that have filled their blocks: each needs one for its next row
        self.due: defaultdict[int, dict[Run, None]] = defaultdict(dict)  # the others, by the step that takes them there
        self.num_carried = 0  # of last_rows, those that go on by themselves
        self.num_ending = 0  # of running, those that take no row any more
        self.steps = Steps()
        self.inflight: deque[StepRecord] = deque()
        self.suspects: dict[Sequence, None] = {}  # sequences with blame
        self.pending_ops: list[Op] = []
        self.outbox = Outbox()
        self.constraints = Constraints(limits.max_preparing)
        self.credits = Credits(limits.max_unread)
        self.drain_rate = DrainRate()
        self.counters = Counters()
        self.capacity: Capacity | None = None
        self._make_room(NOTHING_YET)
        self.unhashed: list[Sequence] = []  # new sequences whose keys are computed after the sends
        self.finished_steps: list[tuple[tuple[int, int], int]] = []  # sizes and durations not yet learned from
        self.step_time = StepTime()
        self.step_sizes = StepSizes()
        self.output_length = OutputLength()
        self.copy_time = CopyTime()
        self.copies: dict[int, Copy] = {}  # ordered and not reported
        self.num_copies = 0
        self.last_preemption_step = 0
        self.unpublished: dict[Run, int] = {}  # runs with a full block to publish once this position is confirmed
        self.generation = 0
        self.num_arrivals = 0
        self.epoch = self.instance = 0
        self.is_open = False  # the executor has answered this epoch's Hello
        self.is_paused = False
        self.is_draining = False

    @property
    def last_step(self) -> int:
        """The number of the last planned step."""
        return self.steps.last

    def set_capacity(self, capacity: Capacity) -> None:
        """What another executor has: every slot, block and host block of it is free."""
        self.capacity = capacity
        self._make_room(capacity)

    def _make_room(self, capacity: Capacity) -> None:
        # Every decode row always fits the budget, the prefill quantum left out.
        budget = self.limits.token_budget - self.limits.prefill_quantum
        self.max_rows = max(1, min(self.limits.max_num_seqs, budget, capacity.max_rows))  # of a step
        self.free_slots = list(range(capacity.max_rows, 0, -1))
        self.host_blocks = list(range(capacity.num_host_blocks))  # free blocks of the host pool
        self.cache = PrefixCache(capacity.num_blocks, capacity.block_size, self.limits.prefix_cache)
        self.pool = self.cache.pool

    def has_credit(self, sequence: Sequence) -> bool:
        return not self.credits.is_silent(sequence.key.gateway)

    def admit(self, sequence: Sequence, now: int) -> Run:
        """Waiting -> running, on a fresh generation of a free slot."""
        self.waiting.remove(sequence)
        sequence.t_first_planned = sequence.t_first_planned or now
        return self.start_run(sequence, self.free_slots.pop())

    def start_run(self, sequence: Sequence, slot: int) -> Run:
        """Put a sequence on a slot with an empty block table, told to the executor by the next plan."""
        assert sequence.run is None
        self.generation = self.generation % MAX_GENERATION + 1
        run = Run(sequence, slot, self.generation, self.steps)
        sequence.run = run
        self.running[run] = None
        self.claims[run] = None
        self.pending_ops.append(
            SlotInit(
                slot=slot,
                generation=run.generation,
                sampling=sequence.sampling,
                seed=sequence.seed,
                num_prompt_tokens=sequence.num_prompt_tokens,
                known_tokens=sequence.tokens.tobytes() if sequence.needs_history else b"",
                constraint=self.constraints.number(sequence),
            )
        )
        return run

    def choose_victim(self, runs: Iterable[Run]) -> Run | None:
        """Whom of these to preempt, by the policy and the rule in force."""
        return choose_victim(runs, self.policy, self.limits.victim, self.has_credit, self.pool)

    def has_place(self) -> bool:
        """Whether one more may run: it finds a slot, and a row in each step; a run that is ending takes none."""
        return bool(self.free_slots) and len(self.running) - self.num_ending < self.max_rows

    def tell_table(self, run: Run) -> None:
        """The next plan gives the executor the run's whole block table."""
        slots = columns.pack([run.slot] * len(run.blocks))
        table = columns.pack(run.blocks)
        self.pending_ops.append(AppendBlocks(slots, columns.pack(range(len(run.blocks))), table))

    def promote(self, run: Run) -> None:
        """From now on the run goes on by itself, one future row a step."""
        self.due[run.go_on()][run] = None
        run.sequence.tenant.num_carried += 1
        del self.claims[run]
        self.num_carried += 1

    def demote(self, runs: Iterable[Run]) -> None:
        """These runs, all carried, no longer go on by themselves."""
        last_step = self.steps.last
        for run in runs:
            if (due := self.due.get(run.due_step)) is not None:
                del due[run]
            run.halt()
            run.last_sampled_step = run.last_planned_step = last_step
            run.sequence.tenant.num_carried -= 1
            self.num_carried -= 1

    def note_full(self, run: Run) -> None:
        """The first block that is planned to its end and not confirmed is published later, if there is one."""
        end = (run.confirmed // self.pool.block_size + 1) * self.pool.block_size
        if run.planned >= end:
            self.unpublished[run] = end
        else:
            self.unpublished.pop(run, None)

    def await_end(self, run: Run) -> None:
        """The run has had its last row; it keeps slot and blocks until that row's token is there."""
        run.is_ending = True
        self.num_ending += 1

    def end_run(self, run: Run) -> None:
        """The one way off the executor: blocks and slot are free at once, since steps run first in, first out."""
        sequence = run.sequence
        if run.is_carried:
            self.demote([run])
        if run.copy is None:
            self.cache.leave(run)
        else:
            run.copy.run = None  # the copy keeps the blocks until it is reported
            run.blocks = []
        self.unpublished.pop(run, None)
        self.num_ending -= run.is_ending
        run.is_live = False
        sequence.run = None
        del self.running[run]
        self.claims.pop(run, None)
        self.pool.free(run.blocks)
        self.free_slots.append(run.slot)
        self.pending_ops.append(SlotRetire(run.slot, run.generation))

    def preempt(self, run: Run) -> None:
        """Running -> waiting. Tokens in flight stay valid and will be delivered; it waits at least until they are."""
        sequence = run.sequence
        sequence.late += run.num_in_flight
        self.end_run(run)
        self.waiting.add(sequence)
        self.counters.num_preemptions += 1
        self.last_preemption_step = self.last_step + 1

    def finish(
        self,
        sequence: Sequence,
        now: int,
        ending: tuple[FinishReason, FailureReason, str],
        matched_token: int | None = None,
    ) -> None:
        """The one way to end: whatever the sequence holds is given back, and its close is said."""
        assert sequence.finish is None, "a sequence ends once"
        if sequence.run is not None:
            self.end_run(sequence.run)
        else:
            self.waiting.remove(sequence)
            self.drop_swapped(sequence)
        if ending is STOP or ending is LENGTH:
            self.output_length.learn(sequence.num_output_tokens)
        self.close(sequence, now, ending, matched_token=matched_token)
        if sequence.request.num_open == 0:
            self.drain_rate.note(now)

    def drop_swapped(self, sequence: Sequence) -> None:
        """Host blocks are free at once, or when the copy that fills them is reported."""
        swapped, sequence.swapped = sequence.swapped, None
        if swapped is not None:
            if swapped.is_there:
                self.host_blocks.extend(swapped.host_blocks)
            else:
                assert swapped.copy is not None
                swapped.copy.sequence = swapped.copy.swapped = None

    def close(
        self,
        sequence: Sequence,
        now: int,
        ending: tuple[FinishReason, FailureReason, str],
        retry_after_ms: int | None = None,
        matched_token: int | None = None,
    ) -> None:
        """The last mention of a sequence that holds nothing."""
        sequence.finish = ending[0]
        self.constraints.leave(sequence)
        self.suspects.pop(sequence, None)
        self.outbox.close(sequence, now, ending, retry_after_ms, matched_token)
        self.tenants.leave(sequence.tenant)
        request = sequence.request
        request.num_open -= 1
        if request.num_open == 0:
            del self.requests[request.identity.request]
            request.sequences.clear()  # which name their request: nothing is left for the collector of cycles
