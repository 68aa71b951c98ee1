"""Building one step: who gets tokens and blocks, in which order, and what the executor is told.

The order of a plan: runs that need something claim it (claims.py), and the waiting join, unless somebody was preempted
(joining.py); last, the step is counted, and with it every carried row is one position on. Until then nothing of a
carried run has changed, so a victim costs no undoing.
"""

from collections.abc import Callable, Iterable

from services.scheduler.core.claims import ask_again, grant_claims
from services.scheduler.core.granting import fit, grant
from services.scheduler.core.joining import admit_waiting
from services.scheduler.core.sequence import Run, Sequence
from services.scheduler.core.state import State
from services.scheduler.core.step import Draft, StepRecord
from services.scheduler.core.swap import is_copying_out, preempt, swap_in
from services.wire.messages import StepPlan

BLAME_ALONE = 2  # failed steps after which a sequence runs alone


def plan_step(state: State, now: int) -> StepPlan | None:
    """The next step, or None when the window is full or nothing can advance."""
    if not state.is_open or state.is_paused or len(state.inflight) >= state.limits.depth:
        return None
    _follow_credit(state)
    draft = Draft(state.last_step + 1, state.counters.num_preemptions)
    suspect = _suspect(state)
    if suspect is None:
        grant_claims(state, draft, now)
        admit_waiting(state, draft, now)
    elif not _plan_alone(state, draft, suspect, now):
        return None
    if state.num_carried or draft.added:
        return _send_off(state, draft)
    if draft.has_displaced:
        # Who waits for the place just given up is admitted by the next plan, and no other event will ask for it.
        return plan_step(state, now)
    if state.copies and not state.inflight:
        return _send_off(state, draft)  # a plan without rows: its result brings at least one copy's end
    return None


def _follow_credit(state: State) -> None:
    """Runs of a gateway that fell silent stop being carried; their claims wait until it reads again."""
    if state.credits.refresh(state.outbox.last_number) and state.credits.is_any_silent:
        _hold_back(state, lambda run: not state.has_credit(run.sequence))


def _hold_back(state: State, is_held: Callable[[Run], bool]) -> None:
    ask_again(state, [run for run in state.last_rows if run.is_carried and is_held(run)])


def _suspect(state: State) -> Sequence | None:
    """The sequence that must run alone now, if any: blamed twice, first in order among those that could."""
    blamed = [s for s in state.suspects if s.blame >= BLAME_ALONE]
    suspects = [s for s in blamed if state.has_credit(s) and state.constraints.is_ready(s)]
    return min(suspects, key=state.policy.precedence) if suspects else None


def _plan_alone(state: State, draft: Draft, suspect: Sequence, now: int) -> bool:
    """A step with one row at most, the suspect's; False while a step with anybody else is unacknowledged."""
    if suspect.late or any(run.sequence is not suspect for record in state.inflight for run in record.rows):
        return False
    _hold_back(state, lambda run: run.sequence is not suspect)
    ask_again(state, [run for run in state.full if run.is_carried])
    state.full.clear()
    run = suspect.run
    if run is None:
        run = _bring_in(state, suspect, now)
    if run is not None and run.copy is None and not run.is_carried and not run.is_exhausted:
        count = min(run.num_wanted, state.limits.chunk_size, state.limits.token_budget)
        count = fit(state, run, count, state.running)
        if count > 0:
            grant(state, draft, run, count)
    return True


def _bring_in(state: State, suspect: Sequence, now: int) -> Run | None:
    """The suspect takes a place, others' if need be; None while a copy is under way that must end first."""
    swapped = suspect.swapped
    if swapped is not None and not swapped.is_there:
        return None
    num_needed = 1 if swapped is None else len(swapped.host_blocks)
    while not state.has_place() or num_needed > state.pool.num_free:
        victim = state.choose_victim(run for run in state.running if run.copy is None)
        if victim is None or is_copying_out(state):
            return None
        preempt(state, victim)
    if swapped is None:
        return state.admit(suspect, now)
    swap_in(state, suspect, now)
    return suspect.run


def _send_off(state: State, draft: Draft) -> StepPlan:
    """Count the step, note who must claim next time, and write the plan and its record."""
    rows = state.last_rows
    dropped: list[int] = []
    if state.num_carried != len(rows):
        dropped = [index for index, run in enumerate(rows) if not run.is_carried]
        rows = rows.copy()
        for index in reversed(dropped):
            del rows[index]
    state.steps.last = draft.step  # which takes every carried row one position on
    state.tenants.serve_step()
    _come_due(state, state.due.pop(draft.step, {}))
    if draft.added:
        rows = rows + [run for run, _ in draft.added]
        for (run, _), samples, end in zip(draft.added, draft.samples, draft.ends, strict=True):
            if samples:
                _carry_on(state, run, end)
    state.last_rows = rows
    num_tokens = len(rows) + sum(count - 1 for _, count in draft.added)
    state.inflight.append(StepRecord(draft, rows, (num_tokens, state.pool.num_held_positions)))
    state.counters.num_steps += 1
    ops, state.pending_ops = state.pending_ops, []
    return draft.plan(state.epoch, ops, dropped)


def _come_due(state: State, runs: Iterable[Run]) -> None:
    """Carried runs that have filled their blocks, or will end with what is in flight."""
    ending: list[Run] = []
    for run in runs:
        if run.due + 1 == run.sequence.limit:
            ending.append(run)
            state.await_end(run)
        else:
            state.full.append(run)
            state.unpublished.setdefault(run, run.due)
    state.demote(ending)


def _carry_on(state: State, run: Run, planned: int) -> None:
    """An added row has sampled: from now on it is carried, claims its next block, or waits for its end."""
    state.tenants.serve_token(run.sequence.tenant)
    if planned < run.due:
        state.promote(run)
    elif run.is_exhausted:
        del state.claims[run]
        state.await_end(run)
