"""Joining: waiting sequences become running, in order, while there is room for their whole first chunk; for all they
have, if they were preempted.

The first that does not fit stops the rest, so nobody overtakes it; one that waits for a reader, for its constraint, for
a twin's prefix or for its request's prompt is passed over. Room means a slot, blocks now, and blocks to come: usage is
looked at into the future, with learned output lengths. Whoever does not fit may displace a running sequence whose
reader is silent or, under the priority policy, one of a lower priority; it joins in a later plan, since nobody joins
in a plan that preempted.
"""

from services.scheduler.core.forecast import has_future
from services.scheduler.core.granting import grant
from services.scheduler.core.sequence import Run, Sequence
from services.scheduler.core.sharing import Head, find_head
from services.scheduler.core.state import State
from services.scheduler.core.step import Draft
from services.scheduler.core.swap import is_copying_out, preempt, swap_in
from services.scheduler.core.tenant import CACHED_WEIGHT, FORKED_WEIGHT


def admit_waiting(state: State, draft: Draft, now: int, before: Run | None = None) -> None:
    """Let the waiting join; before: only those that go before it."""
    if state.counters.num_preemptions != draft.num_preemptions:
        return
    has_formed = not state.policy.fills and any(
        _has_begun(run) and state.has_credit(run.sequence) for run in state.running
    )
    precedence = state.policy.precedence
    may_displace = _may_displace(state)
    is_any_silent = state.credits.is_any_silent
    for sequence in state.waiting.candidates():
        if draft.budget <= 0 or (before is not None and precedence(sequence) > precedence(before.sequence)):
            return
        if not (may_displace or state.has_place()):
            return
        if (is_any_silent and not state.has_credit(sequence)) or not state.constraints.is_ready(sequence):
            continue
        if sequence.late or (sequence.swapped is not None and not sequence.swapped.is_there):
            return  # its tokens in flight, or its copy, arrive first
        head = find_head(state, sequence)
        if head is None:
            continue
        if has_formed and head.parent is None:
            return  # a static batch takes no more but the samples of those in it
        if not _join(state, draft, sequence, head, now):
            return


def _has_begun(run: Run) -> bool:
    return run.last_sampled_step > 0 or run.sequence.num_output_tokens > 0


def _join(state: State, draft: Draft, sequence: Sequence, head: Head, now: int) -> bool:
    """Waiting -> running, if there is room."""
    count = min(len(sequence.tokens) - head.num_positions, state.limits.chunk_size, draft.budget)
    num_needed = _num_new_blocks(state, sequence, head, count)
    has_room = num_needed <= state.pool.num_free and state.has_place()
    if not has_room or not has_future(state, sequence, len(head.blocks)):
        draft.has_displaced = _displace(state, draft, sequence, num_needed)
        return False
    if sequence.swapped is not None:
        swap_in(state, sequence, now)
    else:
        grant(state, draft, _start(state, draft, sequence, head, now), count)
        draft.budget -= count
    draft.has_joined = True
    return True


def _num_new_blocks(state: State, sequence: Sequence, head: Head, count: int) -> int:
    """Blocks that must be free when the sequence joins: for its first chunk or, if it was preempted, for all it has.
    In part it would come back at once, to what it gave up, and be preempted again before it is whole."""
    if sequence.swapped is not None:
        return len(sequence.swapped.host_blocks)
    pool = state.pool
    num_planned = len(sequence.tokens) if sequence.t_first_planned else head.num_positions + count
    num_needed = pool.blocks_for(num_planned)
    return num_needed - len(head.blocks) + pool.num_idle_of(head.blocks) if head.blocks else num_needed


def _start(state: State, draft: Draft, sequence: Sequence, head: Head, now: int) -> Run:
    """Waiting -> running, on top of the head."""
    pool, num_shared = state.pool, len(head.blocks)
    if not sequence.t_first_planned:
        _account(state, sequence, head)
    run = state.admit(sequence, now)
    if num_shared:
        pool.share(head.blocks)
        draft.append_blocks(run, head.blocks)
        run.planned = run.settled = num_shared * pool.block_size
        run.num_cached_blocks = run.num_published = run.num_expected = num_shared
    if run.planned < head.num_positions:
        draft.append_blocks(run, pool.allocate(1))
        draft.copy_tail(run, head.tail, head.num_positions)
    return run


def _account(state: State, sequence: Sequence, head: Head) -> None:
    """What the sequence is spared is counted, and charged, when it joins for the first time."""
    if head.parent is None:
        sequence.num_cached_tokens = head.num_positions
        state.counters.num_cached_tokens += head.num_positions
        if state.limits.prefix_cache:
            state.counters.num_looked_up_tokens += sequence.num_prompt_tokens
        if head.num_positions:
            state.tenants.serve_prompt(sequence, head.num_positions, CACHED_WEIGHT)
    else:
        sequence.num_cached_tokens = head.parent.sequence.num_cached_tokens
        state.counters.num_forks += 1
        state.tenants.serve_prompt(sequence, head.num_positions, FORKED_WEIGHT)


def _displace(state: State, draft: Draft, sequence: Sequence, num_needed: int) -> bool:
    """Take from those that must give way, if that makes room at all; not in a plan that somebody has joined."""
    pool = state.pool
    if not _may_displace(state) or draft.has_joined or is_copying_out(state):
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


def _may_displace(state: State) -> bool:
    """Whether there can be anybody who must give way to the waiting."""
    return state.policy.uses_priority or state.credits.is_any_silent
