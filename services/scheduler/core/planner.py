"""Building one step: who gets tokens and blocks, in which order, and what the executor is told.

The order of a plan: runs that need something (a chunk, a block) claim it in the policy's order, preempting whoever goes
after them; then the waiting are admitted, unless somebody was preempted; last, every carried row moves one position on.
Until that last pass nothing of a carried run has changed, so a victim costs no undoing. Decode rows come first: their
tokens are set aside before any prefill chunk is measured.
"""

from collections.abc import Callable

from services.scheduler.core.policy import choose_victim
from services.scheduler.core.sequence import Run, Sequence
from services.scheduler.core.state import State
from services.scheduler.core.step import Draft, StepRecord
from services.wire.messages import StepPlan

BLAME_ALONE = 2  # failed steps after which a sequence runs alone


def plan_step(state: State, now: int) -> StepPlan | None:
    """The next step, or None when the window is full or nothing can advance."""
    if not state.is_open or state.is_paused or len(state.inflight) >= state.limits.depth:
        return None
    _follow_credit(state)
    draft = Draft(state.last_step + 1)
    suspect = _suspect(state)
    has_displaced = False
    if suspect is None:
        num_preemptions = state.counters.num_preemptions
        budget = _grant_claims(state, draft)
        if state.counters.num_preemptions == num_preemptions:
            has_displaced = _admit_waiting(state, draft, budget, now)
    elif not _plan_alone(state, draft, suspect, now):
        return None
    if state.num_carried == 0 and not draft.added:
        # Who waits for the place just given up is admitted by the next plan, and no other event will ask for it.
        return plan_step(state, now) if has_displaced else None
    return _send_off(state, draft)


def _follow_credit(state: State) -> None:
    """Runs of a gateway that fell silent stop being carried; their claims wait until it reads again."""
    if state.credits.refresh(state.outbox.last_number) and state.credits.is_any_silent:
        _hold_back(state, lambda run: not state.has_credit(run.sequence))


def _hold_back(state: State, is_held: Callable[[Run], bool]) -> None:
    for run in state.last_rows:
        if run.is_carried and is_held(run):
            state.demote(run)
            state.claims[run] = None


def _suspect(state: State) -> Sequence | None:
    """The sequence that must run alone now, if any: blamed twice, first in order among those with credit."""
    suspects = [s for s in state.suspects if s.blame >= BLAME_ALONE and state.has_credit(s)]
    return min(suspects, key=state.order) if suspects else None


def _grant_claims(state: State, draft: Draft) -> int:
    """Serve the claims in order; returns the tokens left in the budget."""
    if not state.claims:
        return state.limits.token_budget - state.num_carried
    claims = sorted(state.claims, key=lambda run: state.order(run.sequence))
    if state.credits.is_any_silent:
        claims = [run for run in claims if state.has_credit(run.sequence)]
    wanted = [run.num_wanted for run in claims]
    budget = state.limits.token_budget - state.num_carried - wanted.count(1)
    for run, num_wanted in zip(claims, wanted, strict=True):
        if not run.is_live:
            continue  # preempted by an earlier claim
        count = 1 if num_wanted == 1 else min(num_wanted, state.limits.chunk_size, budget)
        count = _fit(state, run, count, _goes_after)
        if count > 0:
            _grant(state, draft, run, count)
            budget -= 0 if num_wanted == 1 else count
    return budget


def _goes_after(state: State, run: Run, other: Run) -> bool:
    """Whom a run may preempt: those after it in order, and anyone whose reader is silent."""
    return state.order(other.sequence) > state.order(run.sequence) or not state.has_credit(other.sequence)


def _is_other(_: State, run: Run, other: Run) -> bool:
    """Whom a run that must run alone may preempt: anyone."""
    return other is not run


def _fit(state: State, run: Run, count: int, may_take: Callable[[State, Run, Run], bool]) -> int:
    """How many of `count` tokens have room: shrunk to the free blocks; preempting only when not one has.

    Claims are served in order and take only from those after them, so no victim is in the plan already.
    """
    pool = state.pool
    own = len(run.blocks) * pool.block_size - run.planned
    if count > 0 and own == 0 and pool.num_free == 0:
        candidates = (other for other in state.running if other is not run and may_take(state, run, other))
        victim = choose_victim(candidates, state.order, state.has_credit, state.pool)
        if victim is None:
            return 0
        state.preempt(victim)
    return min(count, own + pool.num_free * pool.block_size)


def _grant(state: State, draft: Draft, run: Run, count: int) -> None:
    """Blocks for `count` more tokens, and a row for them."""
    pool = state.pool
    num_needed = pool.blocks_for(run.planned + count) - len(run.blocks)
    if num_needed > 0:
        draft.append_blocks(run, pool.allocate(num_needed))
    run.due = min(len(run.blocks) * pool.block_size, run.sequence.limit - 1)
    if run.last_sampled_step == state.last_step and run.last_sampled_step > 0:
        run.is_carried = True  # it sampled in the last step: the difference carries it
        state.num_carried += 1
        del state.claims[run]
    else:
        draft.add_row(run, count)
        if count > 1:
            state.cache.expect(run)


def _admit_waiting(state: State, draft: Draft, budget: int, now: int) -> bool:
    """Waiting sequences join in order while their whole first chunk fits; the first that does not fit stops it.

    True when a silent reader's run gave up its place for the one that did not fit.
    """
    assert state.capacity is not None
    max_running = min(state.limits.max_num_seqs, state.limits.token_budget, state.capacity.max_rows)
    num_passed = 0
    while budget > 0 and len(state.waiting) > num_passed:
        sequence = state.waiting[num_passed]
        if not state.has_credit(sequence):
            num_passed += 1
            continue
        if sequence.late:
            return False  # its tokens in flight arrive first
        if len(state.running) >= max_running:
            return _displace_silent(state)
        found = state.cache.match(sequence)
        if state.cache.is_expected(sequence, len(found)):
            num_passed += 1
            continue
        start = len(found) * state.pool.block_size
        count = min(len(sequence.tokens) - start, state.limits.chunk_size, budget)
        num_new = state.pool.blocks_for(start + count) - len(found)
        if num_new + state.pool.num_idle_of(found) > state.pool.num_free:
            return _displace_silent(state)
        _grant(state, draft, _admit(state, draft, sequence, found, now), count)
        budget -= count
    return False


def _admit(state: State, draft: Draft, sequence: Sequence, found: list[int], now: int) -> Run:
    """Waiting -> running, on top of the blocks found in the prefix cache."""
    if not sequence.t_first_planned:
        sequence.num_cached_tokens = len(found) * state.pool.block_size
        state.counters.num_cached_tokens += sequence.num_cached_tokens
    run = state.admit(sequence, now)
    state.pool.share(found)
    draft.append_blocks(run, found)
    run.planned = run.confirmed = len(found) * state.pool.block_size
    run.num_cached_blocks = run.num_published = run.num_expected = len(found)
    return run


def _displace_silent(state: State) -> bool:
    """A sequence whose reader is silent gives its place to one that waits; the next plan admits it."""
    if not state.credits.is_any_silent:
        return False
    silent = (run for run in state.running if not state.has_credit(run.sequence))
    victim = choose_victim(silent, state.order, state.has_credit, state.pool)
    if victim is None:
        return False
    state.preempt(victim)
    return True


def _plan_alone(state: State, draft: Draft, suspect: Sequence, now: int) -> bool:
    """A step with one row at most, the suspect's; False while a step with anybody else is unacknowledged."""
    if suspect.late or any(run.sequence is not suspect for record in state.inflight for run in record.rows):
        return False
    _hold_back(state, lambda run: run.sequence is not suspect)
    run = suspect.run
    if run is None:
        if not state.free_slots:
            victim = choose_victim(state.running, state.order, state.has_credit, state.pool)
            assert victim is not None, "every slot is taken by a run, and every run holds blocks"
            state.preempt(victim)
        run = state.admit(suspect, now)
    if not run.is_carried and not run.is_exhausted:
        count = min(run.num_wanted, state.limits.chunk_size, state.limits.token_budget)
        count = _fit(state, run, count, _is_other)
        if count > 0:
            _grant(state, draft, run, count)
    return True


def _send_off(state: State, draft: Draft) -> StepPlan:
    """Move every carried row on, note who must claim next time, and write the plan and its record."""
    rows, dropped = state.last_rows, []
    if state.num_carried != len(rows):
        dropped = [index for index, run in enumerate(rows) if not run.is_carried]
        rows = [run for run in rows if run.is_carried]
    state.last_step = draft.step
    for run in rows:
        planned = run.planned + 1
        run.planned = planned
        if planned == run.due:
            _come_due(state, run)
    if draft.added:
        rows = rows + [run for run, _ in draft.added]
        for (run, _), samples in zip(draft.added, draft.samples, strict=True):
            if samples:
                _carry_on(state, run)
    state.last_rows = rows
    state.inflight.append(StepRecord(draft.step, rows, draft.added, draft.samples))
    state.counters.num_steps += 1
    ops, state.pending_ops = state.pending_ops, []
    return draft.plan(state.epoch, ops, dropped)


def _come_due(state: State, run: Run) -> None:
    """A carried run has filled its blocks, or will end with what is in flight."""
    state.demote(run)
    if not run.is_exhausted:
        state.claims[run] = None
        state.unpublished[run] = None


def _carry_on(state: State, run: Run) -> None:
    """An added row has sampled: from now on it is carried, claims its next block, or waits for its end."""
    if run.planned < run.due:
        run.is_carried = True
        state.num_carried += 1
        del state.claims[run]
    elif run.is_exhausted:
        del state.claims[run]
