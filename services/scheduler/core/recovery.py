"""Epochs: what happens when an executor opens, a step fails, or an executor dies.

The scheduler owns the epoch. Hello carries it, Ready echoes it, and nothing is planned in between. A failed step of a
living executor keeps KV: every run rewinds to its confirmed positions. A dead executor takes KV with it: every run
becomes a waiting sequence and is computed again from its known tokens. Tokens in flight are lost either way and are
drawn again, the same, since a draw depends only on seed and position.
"""

from services.scheduler.core.admission import judge
from services.scheduler.core.sequence import Sequence
from services.scheduler.core.state import Capacity, State
from services.scheduler.core.step import StepRecord
from services.scheduler.core.swap import forget_copies
from services.wire.messages import FailureReason, FinishReason, Hello, Ready

BLAME_FATAL = 3  # failed steps in a row that end a sequence


def meet_executor(state: State, ready: Ready, now: int) -> Hello | None:
    """Take in a Ready: an unknown instance is met with a Hello, the answer to our Hello opens the epoch."""
    if ready.epoch == 0 and ready.instance != state.instance:
        lose_executor(state, state.instance, now)
        state.instance = ready.instance
        _adopt(state, ready, now)
        return _next_epoch(state)
    if ready.epoch == state.epoch and ready.instance == state.instance:
        state.is_open = True
    return None


def fail_step(state: State, step: int, detail: str, now: int) -> Hello:
    """A step failed and its executor lives: blame its rows, rewind every run, open a new epoch."""
    record = state.inflight[0]
    assert record.step == step, f"failure of step {step} where {record.step} was due"
    _blame(state, [record], detail, now)
    forget_copies(state)
    # Runs that were ending need rows again: those that are too many now come back later.
    for run in sorted(state.running, key=lambda run: state.policy.precedence(run.sequence))[state.max_rows :]:
        state.preempt(run)
    for run in list(state.running):
        if not run.sequence.is_scored:
            state.preempt(run)  # a chunk's first token is judged by the chunk before it, in the same stay
    _forget_steps(state)
    for run in list(state.running):
        _renew(state, run.sequence)
    return _next_epoch(state)


def lose_executor(state: State, instance: int, now: int) -> None:
    """An executor is gone with all KV. Naming an instance that is not the present one changes nothing."""
    if instance != state.instance or instance == 0:
        return
    _blame(state, list(state.inflight), "the executor died", now)
    forget_copies(state)
    _forget_steps(state)
    for run in list(state.running):
        state.preempt(run)
        run.sequence.late = 0
    for sequence in state.waiting:
        state.drop_swapped(sequence)
    state.pending_ops.clear()  # nobody is left to retire the slots
    for sequence in state.constraints.lose_executor():
        ending = FinishReason.FAILED, FailureReason.CONSTRAINT_INVALID, "executors died while they compiled it"
        state.finish(sequence, now, ending)
    state.instance = 0
    state.is_open = False


def _next_epoch(state: State) -> Hello:
    state.epoch += 1
    state.is_open = False
    return Hello(state.epoch)


def _blame(state: State, records: list[StepRecord], detail: str, now: int) -> None:
    """One more failure for every open sequence of these steps, counted once each; the third ends it."""
    blamed = {run.sequence: None for record in records for run in record.rows if run.sequence.finish is None}
    for sequence in blamed:
        sequence.blame += 1
        state.suspects[sequence] = None
        if sequence.blame >= BLAME_FATAL:
            state.finish(sequence, now, (FinishReason.FAILED, FailureReason.STEP_FAILED, detail))


def _forget_steps(state: State) -> None:
    """Nothing is in flight any more: nobody waits for late tokens, no step is a baseline, no operation is pending."""
    state.inflight.clear()
    state.pending_ops.clear()
    state.demote([run for run in state.running if run.is_carried])
    state.last_rows = []
    state.full.clear()
    for sequence in state.waiting:
        sequence.late = 0


def _renew(state: State, sequence: Sequence) -> None:
    """The same blocks and confirmed positions under a new generation, told to the executor by the next plan."""
    old = sequence.run
    assert old is not None
    state.cache.publish(old)
    blocks, old.blocks = old.blocks, []
    state.end_run(old)
    state.pending_ops.pop()  # the new epoch knows no slot, so there is nothing to retire
    run = state.start_run(sequence, state.free_slots.pop())
    run.blocks = blocks
    run.planned = run.settled = old.confirmed
    run.num_cached_blocks = old.num_cached_blocks
    run.num_published = run.num_expected = old.num_published
    state.tell_table(run)


def _adopt(state: State, ready: Ready, now: int) -> None:
    """Take over a new executor's capacity and judge every live request against it."""
    sizes = (ready.num_blocks, ready.block_size, ready.max_rows, ready.num_host_blocks)
    state.set_capacity(Capacity(*sizes, ready.card.context_length, frozenset(ready.card.eos_token_ids)))
    for sequence in list(state.waiting):
        sequence.chain.clear()  # keys are of blocks of the former size
        verdict = judge(state, sequence)
        if verdict is not None:
            state.finish(sequence, now, verdict)
