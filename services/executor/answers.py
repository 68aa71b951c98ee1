"""From launched works to results, in order: what became of each step, and which slots have failed.

The thread that launches may be several steps ahead, so nothing here is told by the present state of a slot: a launch
brings along which generations began with it, and a failed slot counts until another generation is answered for. An
epoch that fails here fails all its later steps, launched or not. Knows the backend only by what it launched.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import structlog

from services.executor.backend import Outcome, Pending
from services.executor.batch import StepBatch
from services.executor.slots import PlanError
from services.wire.messages import (
    FailedRow,
    FailureReason,
    Ready,
    ResultMessage,
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
    """One message made ready to be done: a Hello, a step, or a step whose plan was wrong (`detail` says how)."""

    message: StepMessage
    received_ns: int
    batch: StepBatch | None = None
    detail: str = ""


class Begun(NamedTuple):
    """A slot whose next generation began, and why it was refused if it was."""

    slot: int
    refusal: str


@dataclass(frozen=True, slots=True)
class Answered:
    """What needs no step: a Hello."""

    ready: Ready


@dataclass(frozen=True, slots=True)
class Launched:
    """A work under way. step: what it waits for, or the reason why it was not begun."""

    work: Work
    launched_ns: int
    number: int
    step: Pending | Answered | str
    begun: tuple[Begun, ...] = ()


class FailedSlot(NamedTuple):
    """launch: the number of the last launch that the slot's failed generation was part of."""

    slot: int
    launch: int


@dataclass(frozen=True, slots=True)
class Failure:
    """An epoch that is over, and why."""

    epoch: int
    detail: str

    def detail_in(self, epoch: int) -> str:
        """Why this epoch is over; empty while it is not."""
        return self.detail if epoch == self.epoch else ""


NO_FAILURE = Failure(-1, "")


class Answers:
    """Holds the failed slots as they are after the last answer, and the last epoch that failed."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self.failure = NO_FAILURE
        self._failed_slots: dict[int, tuple[FailureReason, str]] = {}  # until their next generation
        self._to_tell: deque[FailedSlot] = deque()

    def take_failed(self) -> list[FailedSlot]:
        """The slots that have failed since this was last asked; for the thread that launches."""
        taken: list[FailedSlot] = []
        while self._to_tell:
            taken.append(self._to_tell.popleft())
        return taken

    def finish(self, launched: Launched) -> ResultMessage:
        """Wait for what was launched and answer it. Raises only what is a bug of this service."""
        plan, step = launched.work.message, launched.step
        if isinstance(step, Answered):
            return step.ready
        assert isinstance(plan, StepPlan)
        if isinstance(step, str):
            return self._failed(launched, plan, step)
        try:
            outcome = step.wait()
        except STEP_ERRORS as error:
            log.error("step.raised", step=plan.step, exc_info=True)
            return self._failed(launched, plan, told(plan, error))
        if self.failure.detail_in(plan.epoch):
            return self._failed(launched, plan, self.failure.detail)  # it was launched before that was known
        assert launched.work.batch is not None
        self._begin(launched.begun)
        return self._answer(launched, launched.work.batch, outcome)

    def _begin(self, begun: tuple[Begun, ...]) -> None:
        for slot, refusal in begun:
            self._failed_slots.pop(slot, None)
            if refusal:
                self._failed_slots[slot] = FailureReason.STEP_FAILED, refusal

    def _failed(self, launched: Launched, plan: StepPlan, detail: str) -> StepResult:
        if not self.failure.detail_in(plan.epoch):
            self.failure = Failure(plan.epoch, detail)
            log.error("epoch.failed", epoch=plan.epoch, step=plan.step, detail=detail)
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            status=StepStatus.FAILED,
            t_received=launched.work.received_ns,
            t_launched=launched.launched_ns,
            t_done=self._now_ns(),
            detail=self.failure.detail,
        )

    def _answer(self, launched: Launched, batch: StepBatch, outcome: Outcome) -> StepResult:
        tokens = outcome.tokens
        t_launched, t_done = outcome.ran or (launched.launched_ns, self._now_ns())
        n_out = np.zeros(batch.num_rows, np.int32)
        n_out[batch.sampling_rows] = 1
        for row in outcome.poisoned.tolist():
            self._fail_row(launched, batch, row, (FailureReason.POISONED_ROW, "the logits were not finite"))
        for row in outcome.stuck.tolist():
            why = outcome.why_stuck.get(row) or "no token may follow"
            self._fail_row(launched, batch, row, (FailureReason.CONSTRAINT_FAILED, why))
        failed_rows = self._failed_rows(batch) if self._failed_slots else ()
        if failed_rows:
            n_out[[failed.row for failed in failed_rows]] = 0
            tokens = tokens[n_out[batch.sampling_rows] == 1]
        return StepResult(
            epoch=launched.work.message.epoch,
            step=batch.step,
            status=StepStatus.OK,
            tokens=tokens.astype("<i4", copy=False).tobytes(),
            n_out=n_out.tobytes(),
            logprobs=outcome.logprobs,
            prompt_logprobs=outcome.prompt_logprobs,
            failed_rows=failed_rows,
            copies_done=np.array(outcome.copies_done, np.int32).tobytes(),
            t_received=launched.work.received_ns,
            t_launched=t_launched,
            t_done=t_done,
        )

    def _fail_row(self, launched: Launched, batch: StepBatch, row: int, why: tuple[FailureReason, str]) -> None:
        """The generation of this row is over, unless it was before."""
        slot, (reason, text) = int(batch.slots[row]), why
        if slot not in self._failed_slots:
            self._failed_slots[slot] = reason, f"step {batch.step}: {text}"
            self._to_tell.append(FailedSlot(slot, launched.number))

    def _failed_rows(self, batch: StepBatch) -> tuple[FailedRow, ...]:
        """The rows of slots that have failed, now or in an earlier step of the same generation."""
        return tuple(
            FailedRow(row, *self._failed_slots[slot])
            for row, slot in enumerate(batch.slots.tolist())
            if slot in self._failed_slots
        )


def told(plan: StepPlan, error: Exception) -> str:
    """What a result says about the error that a step died of."""
    return f"step {plan.step}: {type(error).__name__}: {error}"
