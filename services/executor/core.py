"""Epochs, steps and their results: the executor without threads, sockets or tensors.

Two halves, so that a shell may give each its own thread, and `ExecutorCore.handle` for driving both by hand:
`prepare` turns a message into work (decoding ahead of the device), `execute` does the work and answers it. Invariants:
every plan of the present epoch is answered exactly once, in order; after a failed step every later step of that epoch
is answered FAILED, unexecuted; plans of any other epoch are dropped; epochs only rise; a Ready comes after everything
before it.
"""

import time
from collections.abc import Callable

import structlog

from services.executor.answers import (
    NO_FAILURE,
    STEP_ERRORS,
    Answered,
    Answers,
    Begun,
    Failure,
    Launched,
    Work,
    told,
)
from services.executor.backend import Backend, Done, Overlapping, Pending, Unsupported
from services.executor.capacity import Capacity
from services.executor.grammars import Grammars
from services.executor.rows import PlanDecoder
from services.executor.slots import PlanError
from services.wire.messages import (
    SCHEMA_VERSION,
    AppendBlocks,
    CopyBlocks,
    Hello,
    Ready,
    ResultMessage,
    SlotInit,
    SlotRetire,
    StepMessage,
    StepPlan,
)

log = structlog.get_logger()


class Intake:
    """The first half: keeps the decoder and the epoch of the last Hello."""

    def __init__(self, capacity: Capacity) -> None:
        self._decoder = PlanDecoder(capacity)
        self._epoch: int | None = None
        self._detail = ""  # why this epoch can no longer be decoded

    def prepare(self, message: StepMessage, received_ns: int) -> Work | None:
        """The work that a message means; None for a plan of another epoch, or a Hello of an older one: dropped."""
        if isinstance(message, Hello):
            if self._epoch is not None and message.epoch < self._epoch:
                return None  # it was meant for the executor whose place this one took
            self._epoch, self._detail = message.epoch, ""
            self._decoder.restart()
            return Work(message, received_ns)
        if message.epoch != self._epoch:
            return None
        if self._detail:
            return Work(message, received_ns, detail=self._detail)
        try:
            return Work(message, received_ns, self._decoder.decode(message, received_ns))
        except PlanError as error:
            self._detail = f"step {message.step}: {error}"
            return Work(message, received_ns, detail=self._detail)


class Engine:
    """The second half, the backend, itself in two: `launch` begins a work, `finish` (answers.py) ends and answers it.

    Between them other works may be launched, when the backend is Overlapping. One thread launches, one finishes.
    """

    def __init__(self, backend: Backend, instance: int, now_ns: Callable[[], int]) -> None:
        self._backend = backend
        self._launch = backend.launch if isinstance(backend, Overlapping) else lambda batch: Done(backend.run(batch))
        self._instance = instance
        self._now_ns = now_ns
        self._answers = Answers(now_ns)
        self._failure = NO_FAILURE  # the last epoch that a launch ended
        self._num_launched = 0
        self._begun: dict[int, int] = {}  # which launch the generation of a slot began with
        self.finish: Callable[[Launched], ResultMessage] = self._answers.finish

    def ready(self, epoch: int) -> Ready:
        """Who answers, and what it holds."""
        capacity = self._backend.capacity
        return Ready(
            epoch=epoch,
            instance=self._instance,
            num_blocks=capacity.num_blocks,
            block_size=capacity.block_size,
            max_rows=capacity.max_rows,
            schema_version=SCHEMA_VERSION,
            card=capacity.card,
            num_host_blocks=capacity.num_host_blocks,
        )

    def execute(self, work: Work) -> ResultMessage:
        """Do the work and answer it. Raises only what is a bug of this service."""
        result = self.finish(self.launch(work))
        self._settle()
        return result

    def launch(self, work: Work) -> Launched:
        """Begin the work; what fails here is answered by `finish`. Raises only what is a bug of this service."""
        self._num_launched += 1
        if isinstance(work.message, Hello):
            self._backend.begin_epoch()
            self._begun.clear()
            return Launched(work, self._now_ns(), self._num_launched, Answered(self.ready(work.message.epoch)))
        self._settle()
        launched_ns = self._now_ns()
        begun: list[Begun] = []
        step = self._begin(work, work.message, begun)
        return Launched(work, launched_ns, self._num_launched, step, tuple(begun))

    def _begin(self, work: Work, plan: StepPlan, begun: list[Begun]) -> Pending | str:
        """The step under way, or why there is none. begun: takes in the slots that begin a generation."""
        detail = self._failure.detail_in(plan.epoch) or self._answers.failure.detail_in(plan.epoch)
        if detail:
            return detail
        if work.batch is None:
            return self._fail(plan, work.detail)
        try:
            self._apply(plan, begun)
            return self._launch(work.batch)
        except STEP_ERRORS as error:
            log.error("step.raised", step=plan.step, exc_info=True)
            return self._fail(plan, told(plan, error))

    def _fail(self, plan: StepPlan, detail: str) -> str:
        self._failure = Failure(plan.epoch, detail)
        return detail

    def _apply(self, plan: StepPlan, begun: list[Begun]) -> None:
        for op in plan.ops:
            match op:
                case SlotInit():
                    begun.append(Begun(op.slot, self._init_slot(op)))
                case CopyBlocks():
                    self._backend.copy_blocks(op)
                case AppendBlocks() | SlotRetire():
                    pass  # the batch carries the block tables; a retired slot is simply not named again

    def _init_slot(self, op: SlotInit) -> str:
        """Why the slot was refused; empty when it was not."""
        self._begun[op.slot] = self._num_launched
        try:
            self._backend.init_slot(op)
        except Unsupported as error:
            self._backend.fail_slot(op.slot)
            return str(error)
        return ""

    def _settle(self) -> None:
        """Tell the backend of the generations that failed, as far as they are still in their slots."""
        for failed in self._answers.take_failed():
            if self._begun.get(failed.slot, failed.launch + 1) <= failed.launch:
                self._backend.fail_slot(failed.slot)


class ExecutorCore:
    """Both halves. One thread may call `prepare` while another calls `execute`; `handle` does both at once.

    With a backend that overlaps, `execute` falls into `launch` and `finish`, each for a thread of its own, in order.

    grammars: the constraints that the backend's slots may follow; one without them judges none.
    """

    def __init__(
        self,
        backend: Backend,
        instance: int,
        now_ns: Callable[[], int] = time.monotonic_ns,
        grammars: Grammars | None = None,
    ) -> None:
        self._now_ns = now_ns
        self.grammars = grammars or Grammars(lambda constraint: None, cache_size=0)
        self._engine = Engine(backend, instance, now_ns)
        self.overlaps = isinstance(backend, Overlapping)
        self.prepare: Callable[[StepMessage, int], Work | None] = Intake(backend.capacity).prepare
        self.execute: Callable[[Work], ResultMessage] = self._engine.execute
        self.launch: Callable[[Work], Launched] = self._engine.launch
        self.finish: Callable[[Launched], ResultMessage] = self._engine.finish

    def opening(self) -> Ready:
        """What an executor says first, before any Hello."""
        return self._engine.ready(epoch=0)

    def handle(self, message: StepMessage) -> list[ResultMessage]:
        """Everything that one message leads to, now and in this thread."""
        work = self.prepare(message, self._now_ns())
        return [] if work is None else [self.execute(work)]
