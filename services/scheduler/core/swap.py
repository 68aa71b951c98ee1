"""Swapping: a preempted sequence's KV goes to host memory and comes back, by copies that the executor reports.

A copy out runs after every step planned before it, so the host holds all planned positions. Until a copy is reported,
its blocks on both sides are fenced: they belong to the copy and to nobody else. Preemption by swap keeps what
preemption by recompute throws away; which of them costs less is learned (`auto`).
"""

from math import inf

from services.scheduler.core.sequence import Copy, Run, Sequence, Swapped
from services.scheduler.core.state import State
from services.scheduler.core.step import StepRecord
from services.wire import columns
from services.wire.messages import CopyBlocks, CopyDirection, StepResult


def preempt(state: State, run: Run) -> None:
    """Running -> waiting, by the way the mode asks for; tokens in flight are delivered all the same."""
    if _wants_swap(state, run):
        _swap_out(state, run)
    state.preempt(run)


def swap_in(state: State, sequence: Sequence, now: int) -> None:
    """Waiting -> running, with a copy of its KV ordered; the run is planned once the copy is reported."""
    swapped = sequence.swapped
    assert swapped is not None and swapped.is_there and not sequence.late
    run = state.admit(sequence, now)
    sequence.swapped = None
    run.blocks = state.pool.allocate(len(swapped.host_blocks))
    state.tell_table(run)
    run.planned = run.settled = swapped.num_positions
    del state.claims[run]
    copy = _new_copy(state, CopyDirection.IN, run.blocks, swapped.host_blocks)
    copy.run = run
    run.copy = copy
    _order(state, copy)


def absorb_copies(state: State, record: StepRecord, result: StepResult) -> None:
    """Copies that the step ordered have begun; those it reports have ended, and their fences fall."""
    for copy in state.copies.values():
        if copy.step == result.step:
            copy.t_begun = result.t_launched
    for number in columns.unpack(result.copies_done):
        copy = state.copies.pop(number)
        state.copy_time.learn(len(copy.host_blocks), _cost_us(state, copy, record, result))
        if copy.direction == CopyDirection.OUT:
            state.pool.free(copy.device_blocks)
            if copy.swapped is None:
                state.host_blocks.extend(copy.host_blocks)  # its sequence has ended
            else:
                copy.swapped.is_there = True
                copy.swapped.copy = None
        else:
            state.host_blocks.extend(copy.host_blocks)
            if copy.run is None:
                state.pool.free(copy.device_blocks)  # its sequence has ended
            else:
                copy.run.copy = None
                state.claims[copy.run] = None


def _cost_us(state: State, copy: Copy, record: StepRecord, result: StepResult) -> float:
    """What a copy cost: the steps that it outlasted, or what the one that ordered it took longer than it should have.

    Ends are seen at the ends of steps, and of what is possible the least is taken: what ended beside a step cost nobody
    anything. Copies run one after another, and none is charged with the wait for another.
    """
    if record.rows and copy.step == result.step:
        usual_us = state.step_time.predict(*record.size) if state.step_time.is_known else inf
        return max(0.0, (result.t_done - result.t_launched) / 1000 - usual_us)
    times = state.copy_time
    ended = times.t_step_done if record.rows else result.t_done  # a step without rows has waited for it
    begun = max(copy.t_begun, times.t_copy_done)
    times.t_copy_done = max(ended, begun)
    return (times.t_copy_done - begun) / 1000


def forget_copies(state: State) -> None:
    """An epoch is over: an unreported copy out becomes a recompute, an unreported copy in returns to swapped."""
    for copy in list(state.copies.values()):
        del state.copies[copy.number]
        if copy.direction == CopyDirection.OUT:
            state.pool.free(copy.device_blocks)
            state.host_blocks.extend(copy.host_blocks)
            if copy.sequence is not None:
                state.drop_swapped(copy.sequence)
        elif copy.run is None:
            state.pool.free(copy.device_blocks)
            state.host_blocks.extend(copy.host_blocks)
        else:
            run = copy.run
            run.copy = None
            run.is_tainted = True  # what its blocks hold is unknown
            state.preempt(run)
            run.sequence.swapped = Swapped(copy.host_blocks, run.planned, is_there=True)


def is_copying_out(state: State) -> bool:
    """Whether somebody's blocks are on their way out; nobody else is preempted meanwhile."""
    return any(copy.direction == CopyDirection.OUT for copy in state.copies.values())


def _wants_swap(state: State, run: Run) -> bool:
    num_blocks = state.pool.blocks_for(run.planned)
    mode = state.limits.preemption
    if mode == "recompute" or run.planned == 0 or num_blocks > len(state.host_blocks):
        return False
    if run.is_ending:
        return False  # what is in flight ends it: nothing will be computed again
    if not run.sequence.is_scored:
        return False  # a chunk's first token is judged by the chunk before it, in the same stay
    if mode == "swap" or state.copy_time.us_per_block is None:
        return True  # auto learns what a copy costs by ordering one
    # What all running rows lose: the copies' stall, out and in, against the tokens that are computed again.
    return 2 * num_blocks * state.copy_time.us_per_block < run.planned * state.step_time.us_per_token


def _swap_out(state: State, run: Run) -> None:
    num_blocks = state.pool.blocks_for(run.planned)
    host_blocks = state.host_blocks[:num_blocks]
    del state.host_blocks[:num_blocks]
    state.cache.publish(run)
    sequence = run.sequence
    sequence.swapped = Swapped(host_blocks, run.planned, is_there=False)
    copy = _new_copy(state, CopyDirection.OUT, run.blocks[:num_blocks], host_blocks)
    copy.sequence, copy.swapped = sequence, sequence.swapped
    sequence.swapped.copy = copy
    del run.blocks[:num_blocks]  # the copy holds them now; run.planned and its counters stay for the record
    _order(state, copy)


def _new_copy(state: State, direction: CopyDirection, device_blocks: list[int], host_blocks: list[int]) -> Copy:
    state.num_copies += 1
    return Copy(state.num_copies, direction, device_blocks, host_blocks)


def _order(state: State, copy: Copy) -> None:
    copy.step = state.last_step + 1
    state.copies[copy.number] = copy
    is_out = copy.direction == CopyDirection.OUT
    sources, destinations = copy.device_blocks, copy.host_blocks
    if not is_out:
        sources, destinations = destinations, sources
    state.pending_ops.append(CopyBlocks(copy.number, copy.direction, columns.pack(sources), columns.pack(destinations)))
