"""Epochs, steps and their results: the executor without threads, sockets or tensors.

Two halves, so that a shell may give each its own thread, and `ExecutorCore.handle` for driving both by hand:
`prepare` turns a message into work (decoding ahead of the device), `execute` does the work and answers it. Invariants:
every plan of the present epoch is answered exactly once, in order; after a failed step every later step of that epoch
is answered FAILED, unexecuted; plans of any other epoch are dropped; epochs only rise; a Ready comes after everything
before it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import structlog

from services.executor.backend import Backend, Outcome, Unsupported
from services.executor.batch import StepBatch
from services.executor.capacity import Capacity
from services.executor.grammars import Grammars
from services.executor.rows import PlanDecoder
from services.executor.slots import PlanError
from services.wire.messages import (
    SCHEMA_VERSION,
    AppendBlocks,
    CopyBlocks,
    FailedRow,
    FailureReason,
    Hello,
    Ready,
    ResultMessage,
    SlotInit,
    SlotRetire,
    StepMessage,
    StepPlan,
    StepResult,
    StepStatus,
)

# What a step may die of: the device, memory, or input it cannot digest. Anything else is a bug of this service.
STEP_ERRORS = (PlanError, RuntimeError, ValueError, IndexError, ArithmeticError, MemoryError)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Work:
    """One message made ready for `execute`: a Hello, a step, or a step whose plan was wrong (`detail` says how)."""

    message: StepMessage
    received_ns: int
    batch: StepBatch | None = None
    detail: str = ""


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
    """The second half: the backend, and what has failed in this epoch."""

    def __init__(self, backend: Backend, instance: int, now_ns: Callable[[], int]) -> None:
        self._backend = backend
        self._instance = instance
        self._now_ns = now_ns
        self._detail = ""  # why this epoch is over; empty while it is not
        self._failed_slots: dict[int, tuple[FailureReason, str]] = {}  # until their next slot_init

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
        if isinstance(work.message, Hello):
            self._backend.begin_epoch()
            self._detail = ""
            return self.ready(work.message.epoch)
        launched_ns = self._now_ns()
        if work.batch is None and not self._detail:
            self._fail(work.message, work.detail)
        if work.batch is None or self._detail:
            return self._failed(work, launched_ns)
        try:
            self._apply(work.message)
            outcome = self._backend.run(work.batch)
        except STEP_ERRORS as error:
            log.error("step.raised", step=work.message.step, exc_info=True)
            self._fail(work.message, f"step {work.message.step}: {type(error).__name__}: {error}")
            return self._failed(work, launched_ns)
        return self._answer(work, work.batch, outcome, launched_ns)

    def _apply(self, plan: StepPlan) -> None:
        for op in plan.ops:
            match op:
                case SlotInit():
                    self._init_slot(op)
                case CopyBlocks():
                    self._backend.copy_blocks(op)
                case AppendBlocks() | SlotRetire():
                    pass  # the batch carries the block tables; a retired slot is simply not named again

    def _init_slot(self, op: SlotInit) -> None:
        self._failed_slots.pop(op.slot, None)
        try:
            self._backend.init_slot(op)
        except Unsupported as error:
            self._fail_slot(op.slot, FailureReason.STEP_FAILED, str(error))

    def _fail_slot(self, slot: int, reason: FailureReason, detail: str) -> None:
        self._failed_slots[slot] = reason, detail
        self._backend.fail_slot(slot)

    def _fail(self, plan: StepPlan, detail: str) -> None:
        self._detail = detail
        log.error("epoch.failed", epoch=plan.epoch, step=plan.step, detail=detail)

    def _failed(self, work: Work, launched_ns: int) -> StepResult:
        assert isinstance(work.message, StepPlan)
        return StepResult(
            epoch=work.message.epoch,
            step=work.message.step,
            status=StepStatus.FAILED,
            t_received=work.received_ns,
            t_launched=launched_ns,
            t_done=self._now_ns(),
            detail=self._detail,
        )

    def _answer(self, work: Work, batch: StepBatch, outcome: Outcome, launched_ns: int) -> StepResult:
        tokens = outcome.tokens
        t_launched, t_done = outcome.ran or (launched_ns, self._now_ns())
        n_out = np.zeros(batch.num_rows, np.int32)
        n_out[batch.sampling_rows] = 1
        for row in outcome.poisoned.tolist():
            self._fail_row(batch, row, FailureReason.POISONED_ROW, "the logits were not finite")
        for row in outcome.stuck.tolist():
            why = outcome.why_stuck.get(row) or "no token may follow"
            self._fail_row(batch, row, FailureReason.CONSTRAINT_FAILED, why)
        failed_rows = self._failed_rows(batch) if self._failed_slots else ()
        if failed_rows:
            n_out[[failed.row for failed in failed_rows]] = 0
            tokens = tokens[n_out[batch.sampling_rows] == 1]
        return StepResult(
            epoch=work.message.epoch,
            step=batch.step,
            status=StepStatus.OK,
            tokens=tokens.astype("<i4", copy=False).tobytes(),
            n_out=n_out.tobytes(),
            logprobs=outcome.logprobs,
            prompt_logprobs=outcome.prompt_logprobs,
            failed_rows=failed_rows,
            copies_done=np.array(outcome.copies_done, np.int32).tobytes(),
            t_received=work.received_ns,
            t_launched=t_launched,
            t_done=t_done,
        )

    def _fail_row(self, batch: StepBatch, row: int, reason: FailureReason, why: str) -> None:
        """The generation of this row is over, unless it was before."""
        slot = int(batch.slots[row])
        if slot not in self._failed_slots:
            self._fail_slot(slot, reason, f"step {batch.step}: {why}")

    def _failed_rows(self, batch: StepBatch) -> tuple[FailedRow, ...]:
        """The rows of slots that have failed, now or in an earlier step of the same generation."""
        return tuple(
            FailedRow(row, *self._failed_slots[slot])
            for row, slot in enumerate(batch.slots.tolist())
            if slot in self._failed_slots
        )


class ExecutorCore:
    """Both halves. One thread may call `prepare` while another calls `execute`; `handle` does both at once.

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
        self.prepare: Callable[[StepMessage, int], Work | None] = Intake(backend.capacity).prepare
        self.execute: Callable[[Work], ResultMessage] = self._engine.execute

    def opening(self) -> Ready:
        """What an executor says first, before any Hello."""
        return self._engine.ready(epoch=0)

    def handle(self, message: StepMessage) -> list[ResultMessage]:
        """Everything that one message leads to, now and in this thread."""
        work = self.prepare(message, self._now_ns())
        return [] if work is None else [self.execute(work)]
