"""Claims: running sequences that need a chunk of their prompt, a block, or a row after a pause, served in order.

Whoever claims may preempt those after it in the policy's order, one at a time and only to gain a block; never one that
is in the plan already. Decode rows come first: their tokens are set aside before any prefill chunk is measured. What is
left for prefill goes by the policy's order to whoever wants it, running or waiting, so that a long prompt does not keep
those out that go before it.
"""

from collections.abc import Iterator

from services.scheduler.core.granting import fit, grant, grant_block_each, prefill_budget
from services.scheduler.core.joining import admit_waiting
from services.scheduler.core.sequence import Run
from services.scheduler.core.state import State
from services.scheduler.core.step import Draft


def grant_claims(state: State, draft: Draft, now: int) -> None:
    """Serve the claims, and before each chunk the waiting that go before it. Where there are blocks enough those that
    have filled theirs get another, all at once, and go on by themselves; else each of them claims like the others."""
    full = [run for run in state.full if run.is_carried]
    state.full.clear()
    decode: list[Run] = []
    chunks: list[Run] = []
    is_any_silent = state.credits.is_any_silent
    for run in state.claims:
        if not (is_any_silent and not state.has_credit(run.sequence)):
            (decode if run.num_wanted == 1 else chunks).append(run)
    draft.budget = prefill_budget(state, state.num_carried + len(decode))
    if not _is_enough(state, len(full) + len(decode), chunks):
        ask_again(state, full)
        decode += full
    else:
        if full:
            grant_block_each(state, draft, full)
        for run in decode:
            grant(state, draft, run, 1)
        decode = []
    for run in sorted(decode + chunks, key=lambda run: state.policy.precedence(run.sequence)):
        num_wanted = run.num_wanted
        if num_wanted > 1 and run.is_live:
            admit_waiting(state, draft, now, before=run)
        if not run.is_live:
            continue  # preempted by an earlier claim
        count = 1 if num_wanted == 1 else min(num_wanted, state.limits.chunk_size, draft.budget)
        count = fit(state, run, count, _may_take(state, draft, run))
        if count > 0:
            grant(state, draft, run, count)
            draft.budget -= 0 if num_wanted == 1 else count


def ask_again(state: State, runs: list[Run]) -> None:
    """These runs, all carried, claim their next row like those that have none."""
    state.demote(runs)
    state.claims.update(dict.fromkeys(runs))


def _is_enough(state: State, num_decode: int, chunks: list[Run]) -> bool:
    """Whether there are blocks for all claims together, so that the order of the decode rows among them is nothing."""
    most = num_decode + len(chunks)  # beyond whole blocks of chunks, each may begin one
    for run in chunks:
        most += state.pool.blocks_for(min(run.num_wanted, state.limits.chunk_size))
    return most <= state.pool.num_free


def _may_take(state: State, draft: Draft, run: Run) -> Iterator[Run]:
    """Whom a claim may preempt: those after it in order, and anyone whose reader is silent. Nobody in a plan that
    somebody has joined: nobody joins at another's cost."""
    precedence = state.policy.precedence
    own = precedence(run.sequence)
    for other in state.running:
        goes_after = precedence(other.sequence) > own or not state.has_credit(other.sequence)
        if goes_after and other not in draft.granted and not draft.has_joined:
            yield other
