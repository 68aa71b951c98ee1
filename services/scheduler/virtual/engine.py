"""The virtual server: one scheduler and one counting device, driven from event to event in virtual time.

An event is a request's arrival or the end of a step. Each is handled as the scheduler's shell handles a message: take
it in, plan while the window has room, then tell the text side. Planning takes no virtual time, readers credit at once.
Everything that happened goes into a Journal; nothing is judged here.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from itertools import takewhile

from services.scheduler.core.policy import FCFS, Policy
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.state import Limits
from services.scheduler.virtual.device import DeviceModel, VirtualDevice
from services.scheduler.virtual.journal import Journal, StepFacts
from services.scheduler.virtual.workload import Demand, Workload
from services.wire import columns
from services.wire.messages import (
    Credit,
    FinishReason,
    Identity,
    Output,
    Sampling,
    SlotInit,
    StepPlan,
    Stopping,
    Submit,
    TokenBatch,
)

GATEWAY = "virtual"
START = 1_000_000_000  # virtual nanoseconds; not 0, which the core's records take for never
_SAMPLING, _OUTPUT = Sampling(), Output()


class Engine:
    """`run` it once. watch: shown the scheduler after every planned step, to look at and not to touch."""

    def __init__(
        self,
        model: DeviceModel,
        limits: Limits,
        policy: Policy = FCFS,
        watch: Callable[[Scheduler], None] | None = None,
    ) -> None:
        self.scheduler = Scheduler(limits, policy)
        self._watch = watch
        self.device = VirtualDevice(model)
        self.journal = Journal()
        self.now = START
        self._queued: defaultdict[str, deque[Demand]] = defaultdict(deque)  # by tenant
        hello = self.scheduler.executor_ready(self.device.ready(0), self.now)
        assert hello is not None
        self.scheduler.executor_ready(self.device.hello(hello), self.now)

    def run(self, workload: Workload) -> Journal:
        """Until every request has ended; what happened."""
        timed = deque(sorted(workload.timed, key=lambda demand: demand.at))  # stable: of one time, in their order
        for demand in workload.queued:
            self._queued[demand.tenant].append(demand)
        while timed or self.device.next_end is not None:
            due = [START + timed[0].at] if timed else []
            due += [self.device.next_end] if self.device.next_end is not None else []
            self.now = max(self.now, min(due))
            while timed and START + timed[0].at <= self.now:
                self._submit(timed.popleft())
            if self.device.next_end == self.now:
                self.scheduler.absorb(self.device.take(), self.now)
            self._advance()
        assert not self.scheduler.state.requests, "the scheduler stands still while a request is open"
        self.journal.num_wasted_rows = self.scheduler.state.counters.num_wasted_rows
        self.journal.num_copied_blocks = self.device.num_copied_blocks
        return self.journal

    def _submit(self, demand: Demand) -> None:
        """A prompt holds nothing but its own number, so no two share a prefix."""
        number = self.journal.open(demand, self.now)
        submit = Submit(
            Identity(GATEWAY, str(number), 1),
            columns.pack([number] * demand.num_prompt_tokens),
            _SAMPLING,
            Stopping(max_tokens=demand.num_output_tokens),
            _OUTPUT,
            priority=demand.priority,
            tenant=demand.tenant,
        )
        refused = self.scheduler.submit(submit, self.now)
        assert refused is None, refused

    def _advance(self) -> None:
        """Fill the window, then tell the text side; in a closed loop those that ended ask again, and so once more."""
        has_news = True
        while has_news:
            while (plan := self.scheduler.plan(self.now)) is not None:
                self.device.receive(plan, self.now)
                self._note(plan)
            batch = self.scheduler.take_batch()
            ended = self._tell(batch) if batch is not None else []
            self.scheduler.tidy()
            has_news = False
            for demand in ended:
                if self._queued[demand.tenant]:
                    self._submit(self._queued[demand.tenant].popleft())
                    has_news = True

    def _note(self, plan: StepPlan) -> None:
        state = self.scheduler.state
        record = state.inflight[-1]
        num_rows, num_tokens = len(record.rows), record.size[0]
        facts = StepFacts(plan.step, num_rows, num_tokens, state.max_rows, len(state.waiting))
        self.journal.steps.append(facts)
        joined = {op.generation for op in plan.ops if isinstance(op, SlotInit)}
        for run in takewhile(lambda run: run.generation in joined, reversed(state.running)):
            self.journal.records[int(run.sequence.key.request)].num_stays += 1
        if self._watch is not None:
            self._watch(self.scheduler)

    def _tell(self, batch: TokenBatch) -> list[Demand]:
        """Note what the clients hear, and credit it; those that have ended."""
        if batch.deltas is not None:
            for key in batch.deltas.sequences:
                self.journal.records[int(key.request)].note_token(self.now)
        self.scheduler.credit(Credit(GATEWAY, batch.number))
        ended: list[Demand] = []
        for close in batch.closes:
            assert close.reason == FinishReason.LENGTH, close
            record = self.journal.records[int(close.sequence.request)]
            record.t_end = self.now
            ended.append(record.demand)
        return ended
