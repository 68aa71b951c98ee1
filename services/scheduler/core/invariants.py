"""What is always true of the state between two verbs. Used by tests after every event; never by the product's path."""

from collections import Counter

from services.scheduler.core.state import State


def check(state: State) -> None:
    """Raise AssertionError at the first broken invariant."""
    _check_places(state)
    _check_blocks(state)
    _check_counters(state)
    _check_rows(state)


def _check_places(state: State) -> None:
    """Every open sequence waits or runs, never both; every slot is free or held by one run."""
    waiting = list(state.waiting)
    in_order = sorted(waiting, key=state.policy.precedence)
    assert list(state.waiting.candidates()) == in_order, "the queue is out of order"
    held = {run.sequence: run for run in state.running}
    for sequence in waiting:
        assert sequence.run is None and sequence.finish is None and sequence not in held
    for sequence, run in held.items():
        assert sequence.run is run and run.is_live and sequence.finish is None
    open_sequences = [s for r in state.requests.values() for s in r.sequences if s.finish is None]
    assert len(open_sequences) == len(waiting) + len(held), "an open sequence is nowhere"
    for request in state.requests.values():
        assert request.num_open == sum(s.finish is None for s in request.sequences) > 0
    if state.capacity is not None:
        slots = sorted(state.free_slots + [run.slot for run in state.running])
        assert slots == list(range(1, state.capacity.max_rows + 1)), "a slot is lost or held twice"


def _check_blocks(state: State) -> None:
    """Counts are those of the live block tables; what is published is full, confirmed and never written again."""
    tables = Counter(block for run in state.running for block in run.blocks)
    tables.update(block for copy in state.copies.values() if copy.run is None for block in copy.device_blocks)
    _check_host_blocks(state)
    assert tables == state.pool.holders(), "a block is lost or leaked, or shared by others than are counted"
    assert 0 not in tables
    assert state.pool.num_free + len(tables) == state.pool.num_total
    contents = state.cache.contents()
    assert all(block in contents for block, count in tables.items() if count > 1), "shared and not published"
    assert all(block in contents and block not in tables for block in state.pool.idle())
    for run in state.running:
        for index in range(run.num_published):
            content = contents.get(run.blocks[index])
            size = state.pool.block_size
            assert content is None or content.tokens == run.tokens[index * size : (index + 1) * size].tobytes()
        writable = run.blocks[run.confirmed // state.pool.block_size :]
        assert not any(block in contents for block in writable), "a published block may be written"


def _check_host_blocks(state: State) -> None:
    """Every host block is free, holds a swapped sequence's KV, or is part of a copy."""
    if state.capacity is None:
        return
    blocks = list(state.host_blocks)
    for sequence in state.waiting:
        if sequence.swapped is not None and sequence.swapped.is_there:
            blocks += sequence.swapped.host_blocks
    for copy in state.copies.values():
        blocks += copy.host_blocks
    assert sorted(blocks) == list(range(state.capacity.num_host_blocks)), "a host block is lost or shared"


def _check_counters(state: State) -> None:
    """C <= P <= A, P <= L + F, 0 <= F <= depth, and nothing beyond the limit."""
    depth = state.limits.depth
    for run in state.running:
        sequence = run.sequence
        known, in_flight = len(sequence.tokens), run.num_in_flight
        allocated = len(run.blocks) * state.pool.block_size
        assert 0 <= run.confirmed <= run.planned <= allocated, (run.confirmed, run.planned, allocated)
        assert run.planned <= known + in_flight <= sequence.limit
        assert 0 <= in_flight <= depth and sequence.late == 0
    for sequence in state.waiting:
        assert 0 <= sequence.late <= depth and len(sequence.tokens) < sequence.limit


def _check_rows(state: State) -> None:
    """The window, the baseline and the claims agree with the runs."""
    assert len(state.inflight) <= state.limits.depth
    assert state.num_carried == sum(run.is_carried for run in state.last_rows)
    assert state.num_ending == sum(run.is_ending for run in state.running)
    assert len(state.running) - state.num_ending <= state.max_rows() or not state.is_open
    assert all(run in state.running for run in state.claims)
    for run in state.running:
        is_waiting_for_copy = run.copy is not None
        is_claiming = run in state.claims
        assert run.is_carried + is_claiming + run.is_ending + is_waiting_for_copy == 1, "a run goes nowhere"
        assert run.is_ending == (run.is_exhausted and not run.is_carried), "a run ends too early or too late"
        if run.is_carried:
            assert run in state.last_rows and run.planned < run.due
    if state.inflight:
        rows = state.inflight[-1].rows
        assert len(rows) == len(set(rows)), "a run has two rows in one step"
