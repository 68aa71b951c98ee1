"""Claims: running sequences that need a chunk of their prompt, a block, or a row after a pause, served in order.

Whoever claims may preempt those after it in the policy's order, one at a time and only to gain a block. Victims are
never in the plan already, since claims are served in order and carried rows move last. Decode rows come first: their
tokens are set aside before any prefill chunk is measured.
"""

from collections.abc import Callable

from services.scheduler.core.sequence import Run
from services.scheduler.core.state import State
from services.scheduler.core.step import Draft
from services.scheduler.core.swap import is_copying_out, preempt


def grant_claims(state: State, draft: Draft) -> int:
    """Serve the claims; returns the tokens left for prefill."""
    claims = sorted(state.claims, key=lambda run: state.policy.precedence(run.sequence))
    if state.credits.is_any_silent:
        claims = [run for run in claims if state.has_credit(run.sequence)]
    wanted = [run.num_wanted for run in claims]
    budget = prefill_budget(state, state.num_carried + wanted.count(1))
    for run, num_wanted in zip(claims, wanted, strict=True):
        if not run.is_live:
            continue  # preempted by an earlier claim
        count = 1 if num_wanted == 1 else min(num_wanted, state.limits.chunk_size, budget)
        count = fit(state, run, count, _goes_after)
        if count > 0:
            grant(state, draft, run, count)
            budget -= 0 if num_wanted == 1 else count
    return budget


def prefill_budget(state: State, num_decode: int) -> int:
    """Tokens that prefill may have in a step with so many decode rows: what the budget leaves, and with an inter-token
    target no more than the learned step time allows, but never less than the quantum, so that prefill goes on."""
    limits = state.limits
    budget = limits.token_budget - num_decode
    model = state.step_time
    if limits.inter_token_us and num_decode and model.is_known:
        slack_us = limits.inter_token_us - model.predict(num_decode, state.num_held_positions())
        allowed = int(slack_us / model.us_per_token) if model.us_per_token > 0 else budget
        budget = min(budget, max(allowed, limits.prefill_quantum, 1))
    return budget


def fit(state: State, run: Run, count: int, may_take: Callable[[State, Run, Run], bool]) -> int:
    """How many of `count` tokens have room: shrunk to the free blocks; preempting only when not one has."""
    pool = state.pool
    own = len(run.blocks) * pool.block_size - run.planned
    if count > 0 and own == 0 and pool.num_free == 0 and not is_copying_out(state):
        others = (r for r in state.running if r is not run and r.copy is None and may_take(state, run, r))
        victim = state.choose_victim(others)
        if victim is not None:
            preempt(state, victim)
    return min(count, own + pool.num_free * pool.block_size)


def grant(state: State, draft: Draft, run: Run, count: int) -> None:
    """Blocks for `count` more tokens, and a row for them."""
    pool = state.pool
    draft.granted[run] = None
    num_needed = pool.blocks_for(run.planned + count) - len(run.blocks)
    if num_needed > 0:
        draft.append_blocks(run, pool.allocate(num_needed))
    run.due = min(len(run.blocks) * pool.block_size, run.sequence.limit - 1)
    if run.last_sampled_step == state.last_step and run.last_sampled_step > 0:
        state.promote(run)  # it sampled in the last step: the difference carries it
    else:
        draft.add_row(run, count)
        if count > 1:
            state.cache.expect(run)


def is_other(_: State, run: Run, other: Run) -> bool:
    """Whom a run that must run alone may preempt: anyone."""
    return other is not run


def _goes_after(state: State, run: Run, other: Run) -> bool:
    """Whom a claim may preempt: those after it in order, and anyone whose reader is silent."""
    precedence = state.policy.precedence
    return precedence(other.sequence) > precedence(run.sequence) or not state.has_credit(other.sequence)
