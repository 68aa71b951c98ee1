"""What is always true of the state between two verbs. Used by tests after every event; never by the product's path."""

from collections import Counter

from services.scheduler.core.sequence import Run, Sequence
from services.scheduler.core.state import State
from services.wire.messages import CopyDirection


def check(state: State) -> None:
    """Raise AssertionError at the first broken invariant."""
    _check_places(state)
    _check_blocks(state)
    _check_shared(state)
    _check_published(state)
    _check_copies(state)
    _check_counters(state)
    _check_flight(state)
    _check_rows(state)
    _check_tenants(state)
    _check_constraints(state)


def _check_places(state: State) -> None:
    """Every open sequence waits or runs, never both; every slot is free or held by one run."""
    waiting = list(state.waiting)
    in_order = sorted(waiting, key=state.policy.precedence)
    assert list(state.waiting.candidates()) == in_order, "the queue is out of order"
    held = {run.sequence: run for run in state.running}
    for sequence in waiting:
        assert sequence.run is None and sequence.finish is None and sequence not in held
    for sequence, run in held.items():
        assert sequence.run is run and run.is_live and sequence.finish is None and sequence.swapped is None
    open_sequences = [s for r in state.requests.values() for s in r.sequences if s.finish is None]
    assert len(open_sequences) == len(waiting) + len(held), "an open sequence is nowhere"
    for request in state.requests.values():
        assert request.num_open == sum(s.finish is None for s in request.sequences) > 0
    assert all(s.finish is None and s.blame > 0 for s in state.suspects), "an ended sequence is suspected"
    if state.capacity is not None:
        slots = sorted(state.free_slots + [run.slot for run in state.running])
        assert slots == list(range(1, state.capacity.max_rows + 1)), "a slot is lost or held twice"
        assert len(state.running) - state.num_ending <= state.max_rows or not state.is_open


def _check_blocks(state: State) -> None:
    """Counts are those of the live block tables; a block that may still be written is its table's alone."""
    tables = Counter(block for run in state.running for block in run.blocks)
    tables.update(block for copy in state.copies.values() if copy.run is None for block in copy.device_blocks)
    assert tables == state.pool.holders(), "a block is lost or leaked, or shared by others than are counted"
    assert 0 not in tables
    assert state.pool.num_free + len(tables) == state.pool.num_total
    contents = state.cache.contents()
    assert all(block in contents and block not in tables for block in state.pool.idle())
    for run in state.running:
        assert run.blocks, "a run without a block"
        writable = run.blocks[run.confirmed // state.pool.block_size :]
        assert not any(block in contents for block in writable), "a published block may be written"
        assert all(tables[block] == 1 for block in writable), "a block has two writers, or a copy reads it"


def _check_shared(state: State) -> None:
    """A block of two tables stands at the same place of both, after the same tokens, and holds the same."""
    size, holders = state.pool.block_size, state.pool.holders()
    contents: dict[int, bytes] = {}
    for run in state.running:
        for index, block in enumerate(run.blocks):
            if holders[block] > 1:
                content = run.tokens[: (index + 1) * size].tobytes()
                assert contents.setdefault(block, content) == content, "a block is shared that holds something else"


def _check_published(state: State) -> None:
    """What is published holds known, confirmed tokens; what is expected is being computed."""
    contents, size = state.cache.contents(), state.pool.block_size
    assert len({content.key for content in contents.values()}) == len(contents), "a key leads to two blocks"
    for run in state.running:
        assert run.num_cached_blocks <= run.num_published <= max(run.num_published, run.num_expected)
        assert run.num_published * size <= run.confirmed
        for index in range(run.num_published):
            content = contents.get(run.blocks[index])
            assert content is None or content.tokens == run.tokens[index * size : (index + 1) * size].tobytes()
    chunks = {run for record in state.inflight for run, count in record.added if count > 1}
    assert all(run.is_live and run in chunks for run in state.cache.expected().values()), "nobody computes it"


def _check_copies(state: State) -> None:
    """Every host block is free, holds a swapped sequence's KV, or is part of a copy; copies know whose they are."""
    size = state.pool.block_size
    blocks = list(state.host_blocks)
    for sequence in state.waiting:
        swapped = sequence.swapped
        if swapped is not None:
            assert 0 < swapped.num_positions <= len(swapped.host_blocks) * size
            if swapped.is_there:
                blocks += swapped.host_blocks
                assert not sequence.late, "a copy out was reported before the steps ahead of it"
            else:
                assert swapped.copy is not None and state.copies[swapped.copy.number].swapped is swapped
    for copy in state.copies.values():
        blocks += copy.host_blocks
        assert len(copy.host_blocks) == len(copy.device_blocks) > 0
        if copy.direction == CopyDirection.OUT:
            assert copy.run is None and (copy.swapped is None) == (copy.sequence is None)
        elif copy.run is not None:
            assert copy.run.copy is copy and copy.run in state.running and copy.run.blocks == copy.device_blocks
    if state.capacity is not None:
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


def _check_flight(state: State) -> None:
    """F and P - C are what the unacknowledged steps hold, no more and no less."""
    tokens: Counter[Run] = Counter()
    samples: Counter[Run] = Counter()
    late: Counter[Sequence] = Counter()
    for record in state.inflight:
        assert len(record.rows) == len(set(record.rows)), "a run has two rows in one step"
        for run, count in record.copied:
            tokens[run] += count
            assert 0 < count < state.pool.block_size and run in dict(record.added), "no tail, or nothing comes after it"
        added = dict(record.added)
        for run in record.rows:
            tokens[run] += added.get(run, 1)
        for run in record.samplers(frozenset()):
            samples[run] += 1
            late[run.sequence] += not run.is_live
    for run in state.running:
        assert run.planned - run.confirmed == tokens[run], "a position is counted twice, or lost"
        assert run.num_in_flight == samples[run], "a token in flight is counted twice, or lost"
    for sequence in state.waiting:
        assert sequence.late == late[sequence], "a late token is counted twice, or lost"


def _check_rows(state: State) -> None:
    """The window, the baseline and the claims agree with the runs."""
    assert len(state.inflight) <= state.limits.depth
    steps = [record.step for record in state.inflight]
    assert steps == list(range(state.last_step - len(steps) + 1, state.last_step + 1)), "a step is missing"
    assert not state.inflight or state.inflight[-1].rows == state.last_rows, "another baseline than the executor's"
    carried = [run for run in state.last_rows if run.is_carried]
    assert state.num_carried == len(carried)
    due = {run: step for step, runs in state.due.items() for run in runs}
    assert due == {run: run.due_step for run in carried if run not in state.full}, "nobody looks when it is due"
    assert all(step > state.last_step for step in due.values()), "it is overdue"
    assert state.num_ending == sum(run.is_ending for run in state.running)
    assert all(run in state.running for run in [*state.claims, *state.unpublished])
    for run in state.running:
        is_waiting_for_copy = run.copy is not None
        is_claiming = run in state.claims
        assert run.is_carried + is_claiming + run.is_ending + is_waiting_for_copy == 1, "a run goes nowhere"
        assert run.is_ending == (run.is_exhausted and not run.is_carried), "a run ends too early or too late"
        if run.is_carried:
            assert run in state.last_rows and (run.planned < run.due or run in state.full), "it outgrows its blocks"


def _check_tenants(state: State) -> None:
    """A tenant's counts are those of its sequences."""
    open_sequences = [s for r in state.requests.values() for s in r.sequences if s.finish is None]
    num_open = Counter(sequence.tenant for sequence in open_sequences)
    num_carried = Counter(run.sequence.tenant for run in state.running if run.is_carried)
    for tenant, count in num_open.items():
        assert tenant.num_open == count and tenant.num_carried == num_carried[tenant]


def _check_constraints(state: State) -> None:
    """A constraint is kept for exactly the open sequences that follow it, and whoever runs has one that is ready."""
    following = {s: record.constraint for record in state.constraints.records() for s in record.sequences}
    open_sequences = [s for request in state.requests.values() for s in request.sequences if s.finish is None]
    assert following == {s: s.constraint for s in open_sequences if s.constraint is not None}
    assert all(record.sequences for record in state.constraints.records()), "nobody follows it"
    assert all(state.constraints.is_ready(run.sequence) for run in state.running), "its constraint is not ready"
