"""The scheduler's face: its verbs, each one event. Pure: no sockets, no clock, no randomness.

Rule 1: everything that changes the state comes in through a verb; time (nanoseconds of the caller's clock) comes in
as `now`. Rule 2: the same verbs in the same order give the same plans, byte for byte. Expected failures are values in
the TokenBatch; an assertion that fails here is a bug. After each verb `take_batch` gives what the text side must hear.
"""

import heapq

from services.scheduler.core.absorb import absorb_step
from services.scheduler.core.admission import cancel_request, submit_request
from services.scheduler.core.planner import plan_step
from services.scheduler.core.policy import FCFS, Policy
from services.scheduler.core.recovery import fail_step, lose_executor, meet_executor
from services.scheduler.core.report import load_of
from services.scheduler.core.sequence import Request
from services.scheduler.core.state import STOP, Limits, State
from services.wire.messages import (
    ConstraintMessage,
    Credit,
    FailureReason,
    FinishReason,
    Hello,
    Identity,
    Load,
    Prepared,
    Ready,
    Refused,
    StepPlan,
    StepResult,
    StepStatus,
    StopHit,
    Submit,
    TokenBatch,
)

_DEADLINE = (FinishReason.FAILED, FailureReason.DEADLINE, "the deadline passed")


class Scheduler:
    """Verbs over State. `state` is for invariants, tests and metrics to read, never to change."""

    def __init__(self, limits: Limits, policy: Policy = FCFS) -> None:
        assert 1 <= limits.depth <= 3, "depth is 1, 2 or 3"
        self.state = State(limits, policy)
        self._deadlines: list[tuple[int, int, Request]] = []  # a heap; ended requests leave when their time comes

    # requests

    def submit(self, submit: Submit, now: int) -> Refused | None:
        """Take in a call. A Refused answers only a live duplicate; any other refusal is in the next batch."""
        refused = submit_request(self.state, submit, now)
        if refused is None and submit.remaining_ms is not None:
            request = self.state.requests.get(submit.identity.request)
            if request is not None and request.deadline is not None:
                heapq.heappush(self._deadlines, (request.deadline, self.state.num_arrivals, request))
                self._forget_ended()
        return refused

    def cancel(self, identity: Identity, now: int) -> None:
        """End a call; one that is unknown or has ended is no error."""
        request = self.state.requests.get(identity.request)
        if request is not None and request.identity == identity:
            cancel_request(self.state, request, now)

    def cancel_all(self, now: int) -> int:
        """End every call, whoever made it; the number of them."""
        requests = list(self.state.requests.values())
        for request in requests:
            cancel_request(self.state, request, now)
        return len(requests)

    def stop_hit(self, hit: StopHit, now: int) -> None:
        """A stop string ended a sequence for its client; one that has ended is no error."""
        key = hit.sequence
        request = self.state.requests.get(key.request)
        if request is None or request.identity != Identity(key.gateway, key.request, key.incarnation):
            return
        sequence = request.sequences[key.index]
        if sequence.finish is None:
            self.state.finish(sequence, now, STOP)

    def expire(self, now: int) -> None:
        """End every call whose deadline has passed."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, request = heapq.heappop(self._deadlines)
            cancel_request(self.state, request, now, _DEADLINE)

    def _forget_ended(self) -> None:
        """Keep the heap in proportion to the live requests."""
        if len(self._deadlines) > 2 * len(self.state.requests) + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[2].num_open]
            heapq.heapify(self._deadlines)

    def next_deadline(self) -> int | None:
        """When `expire` next has something to look at."""
        return self._deadlines[0][0] if self._deadlines else None

    # steps

    def plan(self, now: int) -> StepPlan | None:
        """The next step, or None while the window is full or nothing can advance."""
        return plan_step(self.state, now)

    def absorb(self, result: StepResult, now: int) -> Hello | None:
        """Take in a result: an older epoch's or a dead executor's is nothing, a failed one opens a new epoch with the
        Hello returned."""
        if result.epoch != self.state.epoch or not self.state.is_open:
            return None
        if result.status == StepStatus.FAILED:
            return fail_step(self.state, result.step, result.detail, now)
        absorb_step(self.state, result, now)
        return None

    def prepared(self, answer: Prepared, now: int) -> None:
        """The executor has compiled a constraint, or says why it cannot: then every call that asks for it ends."""
        ending = FinishReason.FAILED, FailureReason.CONSTRAINT_INVALID, answer.detail
        for sequence in self.state.constraints.answer(answer):
            self.state.finish(sequence, now, ending)

    def take_constraints(self) -> list[ConstraintMessage]:
        """What the executor is to prepare, or to release, since the last call; nothing while there is none."""
        return self.state.constraints.take_messages() if self.state.is_open else []

    def take_batch(self) -> TokenBatch | None:
        """What the text side must hear since the last call, or None."""
        return self.state.outbox.take()

    def tidy(self) -> None:
        """What can wait until everything is sent: keys of new prompts, publication of blocks filled by decoding."""
        state = self.state
        for sequence in state.unhashed:
            if sequence.finish is None:
                state.cache.hash_known(sequence)
        state.unhashed.clear()
        for run, end in list(state.unpublished.items()):
            if run.confirmed >= end:
                state.cache.publish(run)
                state.note_full(run)
        for (num_tokens, num_positions), duration in state.finished_steps:
            state.step_time.learn(num_tokens, num_positions, duration / 1000)
            state.step_sizes.note(num_tokens, duration // 1000)
        state.finished_steps.clear()

    def flush_cache(self) -> int:
        """Forget every prefix that no running sequence holds; the number of blocks given up."""
        return self.state.cache.flush()

    def credit(self, credit: Credit) -> None:
        """A gateway's reader has come so far."""
        self.state.credits.credit(credit.gateway, credit.seq)

    # the executor and the operator

    def executor_ready(self, ready: Ready, now: int) -> Hello | None:
        """An executor has opened (its Hello is returned) or has answered a Hello."""
        return meet_executor(self.state, ready, now)

    def executor_lost(self, instance: int, now: int) -> None:
        """An executor is gone; a notice about an older one is nothing."""
        lose_executor(self.state, instance, now)

    def pause(self, is_paused: bool) -> None:
        """Stop or go on planning; results and cancels are taken in all the same."""
        self.state.is_paused = is_paused

    def drain(self) -> None:
        """Refuse new work from now on."""
        self.state.is_draining = True

    def load(self, now: int) -> Load:
        """The state in numbers."""
        return load_of(self.state, now)
