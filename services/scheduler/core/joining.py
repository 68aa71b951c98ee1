"""Joining: waiting sequences become running, in order, while there is room for their whole first chunk; for all they
have, if they were preempted.

The first that does not fit stops the rest, so nobody overtakes it; one that waits for a reader or for a twin's prefix
is passed over. Room means a slot, blocks now, and blocks to come: usage is looked at into the future, with learned
output lengths. Whoever does not fit may displace a running sequence whose reader is silent or, under the priority
policy, one of a lower priority; it joins in a later plan, since nobody joins in a plan that preempted.
"""

from services.scheduler.core.forecast import has_future
from services.scheduler.core.granting import grant
from services.scheduler.core.sequence import Run, Sequence
from services.scheduler.core.state import State
from services.scheduler.core.step import Draft
from services.scheduler.core.swap import is_copying_out, preempt, swap_in
from services.scheduler.core.tenant import CACHED_WEIGHT


def admit_waiting(state: State, draft: Draft, now: int, before: Run | None = None) -> None:
    """Let the waiting join; before: only those that go before it."""
    if state.counters.num_preemptions != draft.num_preemptions:
        return
    if not state.policy.fills and any(_has_begun(run) and state.has_credit(run.sequence) for run in state.running):
        return  # the batch has formed
    precedence = state.policy.precedence
    for sequence in state.waiting.candidates():
        if draft.budget <= 0 or (before is not None and precedence(sequence) > precedence(before.sequence)):
            return
        if not state.has_credit(sequence):
            continue
        if sequence.late or (sequence.swapped is not None and not sequence.swapped.is_there):
            return  # its tokens in flight, or its copy, arrive first
        found = state.cache.match(sequence) if sequence.swapped is None else []
        if sequence.swapped is None and state.cache.is_expected(sequence, len(found)):
            continue
        count = _first_chunk(state, sequence, len(found), draft.budget)
        num_needed = _num_new_blocks(state, sequence, found, count)
        has_room = state.has_place() and num_needed <= state.pool.num_free
        if not has_room or not has_future(state, sequence, len(found)):
            draft.has_displaced = _displace(state, draft, sequence, num_needed)
            return
        if sequence.swapped is not None:
            swap_in(state, sequence, now)
        else:
            grant(state, draft, _start(state, draft, sequence, found, now), count)
            draft.budget -= count
        draft.has_joined = True


def _has_begun(run: Run) -> bool:
    return run.last_sampled_step > 0 or run.sequence.num_output_tokens > 0


def _first_chunk(state: State, sequence: Sequence, num_found: int, budget: int) -> int:
    num_left = len(sequence.tokens) - num_found * state.pool.block_size
    return min(num_left, state.limits.chunk_size, budget)


def _num_new_blocks(state: State, sequence: Sequence, found: list[int], count: int) -> int:
    """Blocks that must be free when the sequence joins: for its first chunk or, if it was preempted, for all it has.
    In part it would come back at once, to what it gave up, and be preempted again before it is whole."""
    if sequence.swapped is not None:
        return len(sequence.swapped.host_blocks)
    pool = state.pool
    num_planned = len(sequence.tokens) if sequence.t_first_planned else len(found) * pool.block_size + count
    return pool.blocks_for(num_planned) - len(found) + pool.num_idle_of(found)


def _start(state: State, draft: Draft, sequence: Sequence, found: list[int], now: int) -> Run:
    """Waiting -> running, on top of the blocks found in the prefix cache."""
    num_found = len(found) * state.pool.block_size
    if not sequence.t_first_planned:
        sequence.num_cached_tokens = num_found
        state.counters.num_cached_tokens += num_found
        if state.limits.prefix_cache:
            state.counters.num_looked_up_tokens += sequence.num_prompt_tokens
        state.tenants.serve_prompt(sequence, num_found, CACHED_WEIGHT)
    run = state.admit(sequence, now)
    state.pool.share(found)
    draft.append_blocks(run, found)
    run.planned = run.confirmed = num_found
    run.num_cached_blocks = run.num_published = run.num_expected = len(found)
    return run


def _displace(state: State, draft: Draft, sequence: Sequence, num_needed: int) -> bool:
    """Take from those that must give way, if that makes room at all; not in a plan that somebody has joined."""
    pool = state.pool
    must_somebody = state.policy.uses_priority or state.credits.is_any_silent
    if not must_somebody or draft.has_joined or is_copying_out(state):
        return False
    yielding = [
        run
        for run in state.running
        if run.copy is None
        and run not in draft.granted
        and (not state.has_credit(run.sequence) or state.policy.displaces(sequence, run.sequence))
    ]
    num_gained = sum(pool.num_reclaimable(run.blocks) for run in yielding)
    if not yielding or pool.num_free + num_gained < num_needed:
        return False
    has_displaced = False
    while yielding and not is_copying_out(state):
        victim = state.choose_victim(yielding)
        if victim is None:
            break
        preempt(state, victim)
        has_displaced = True
        yielding.remove(victim)
        if num_needed <= pool.num_free and state.has_place():
            break
    return has_displaced
