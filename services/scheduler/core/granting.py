"""Granting: how many tokens there are for prefill, what a run may have of them, and its blocks and row in the plan.

Knows no order of service: claims.py and joining.py say who is next.
"""

from collections.abc import Iterable

from services.scheduler.core.sequence import Run
from services.scheduler.core.state import State
from services.scheduler.core.step import Draft
from services.scheduler.core.swap import is_copying_out, preempt
from services.scheduler.core.tenant import PREFILL_WEIGHT


def prefill_budget(state: State, num_decode: int) -> int:
    """Tokens that prefill may have in a step with so many decode rows: what the budget leaves, and with an inter-token
    target no more than the learned step time allows, but never less than the quantum, so that prefill goes on."""
    limits = state.limits
    budget = limits.token_budget - num_decode
    model = state.step_time
    if limits.inter_token_us and num_decode and model.is_known:
        slack_us = limits.inter_token_us - model.predict(num_decode, state.pool.num_held_positions)
        allowed = int(slack_us / model.us_per_token) if model.us_per_token > 0 else budget
        budget = min(budget, max(allowed, limits.prefill_quantum, 1))
    return budget


def fit(state: State, run: Run, count: int, may_take: Iterable[Run]) -> int:
    """How many of `count` tokens have room: shrunk to the free blocks; preempting one of those it may take from only
    when not one has."""
    pool = state.pool
    own = len(run.blocks) * pool.block_size - run.planned
    if count <= own:
        return count
    if count > 0 and own == 0 and pool.num_free == 0 and not is_copying_out(state):
        victim = state.choose_victim(other for other in may_take if other is not run and other.copy is None)
        if victim is not None:
            preempt(state, victim)
    return min(count, own + pool.num_free * pool.block_size)


def grant(state: State, draft: Draft, run: Run, count: int) -> None:
    """Blocks for `count` more tokens, and a row for them."""
    pool, sequence, position = state.pool, run.sequence, run.planned
    draft.granted[run] = None
    if position < sequence.num_prompt_tokens:
        state.tenants.serve_prompt(sequence, position + count, PREFILL_WEIGHT)
    num_needed = pool.blocks_for(position + count) - len(run.blocks)
    if num_needed > 0:
        draft.append_blocks(run, pool.allocate(num_needed))
    end, last = len(run.blocks) * pool.block_size, sequence.limit - 1
    run.due = end if end < last else last
    if run.last_sampled_step == state.last_step and run.last_sampled_step > 0:
        state.promote(run)  # it sampled in the last step: the difference carries it
    else:
        draft.add_row(run, count)
        if count > 1:
            state.cache.expect(run, position + count)


def grant_block_each(state: State, draft: Draft, runs: list[Run]) -> None:
    """Another block for each carried run that has filled its own; there are enough."""
    size = state.pool.block_size
    draft.append_block_each(runs, state.pool.allocate(len(runs)))
    most = state.due[state.last_step + size]
    for run in runs:
        end, last = run.due + size, run.sequence.limit - 1
        if end <= last:
            run.due = end
            most[run] = None
        else:
            run.due = last
            state.due[run.due_step][run] = None
