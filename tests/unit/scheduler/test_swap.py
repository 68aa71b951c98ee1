"""Swapping: KV goes to host memory and comes back, behind fences, within bounds, and whatever fails meanwhile."""

import pytest

from services.scheduler.core.swap import is_copying_out
from services.wire import columns
from services.wire.messages import CopyBlocks, CopyDirection, FinishReason, Identity, StepPlan
from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import Pace, Rig, limits, submit_message

PROMPT = [5, 6, 7, 8, 9]
NAMES = ("a", "b", "c")


def crowded(depth: int = 2, num_host_blocks: int = 16, copy_lag: int = 1, preemption: str = "swap") -> Rig:
    """Three that grow to 25 positions each in a pool for 32: two of them must give way."""
    rig = Rig(
        limits(depth=depth, preemption=preemption, forecast=False),
        num_blocks=9,
        block_size=4,
        num_host_blocks=num_host_blocks,
        copy_lag=copy_lag,
    )
    for name in NAMES:
        rig.submit(submit_message(name, PROMPT, max_tokens=20, salt=name))
    return rig


def copies_of(plans: list[StepPlan], direction: CopyDirection) -> list[CopyBlocks]:
    return [op for plan in plans for op in plan.ops if isinstance(op, CopyBlocks) and op.direction == direction]


def run_until_copying(rig: Rig, direction: CopyDirection) -> None:
    """Stop at the event after which a copy is ordered and not reported."""
    rig.until(lambda: any(copy.direction == direction for copy in rig.scheduler.state.copies.values()))


def assert_outputs(rig: Rig, *names: str) -> None:
    for name in names:
        assert rig.output(name) == continuation(PROMPT, 0, 20)


@pytest.mark.parametrize("copy_lag", [0, 1, 3])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_swapped_sequence_goes_on_where_it_was_and_computes_nothing_again(depth: int, copy_lag: int) -> None:
    rig = crowded(depth, copy_lag=copy_lag)
    rig.run()
    assert_outputs(rig, *NAMES)
    assert rig.scheduler.state.counters.num_preemptions > 0
    assert len(copies_of(rig.plans, CopyDirection.OUT)) == len(copies_of(rig.plans, CopyDirection.IN)) > 0
    assert sum(count for rows in rig.row_history for _, count in rows) == 3 * (5 + 19)


def test_blocks_on_their_way_out_are_fenced_until_they_are_reported() -> None:
    """And nobody else is preempted meanwhile; whoever needs a block waits for the copy."""
    rig = crowded(copy_lag=3)
    run_until_copying(rig, CopyDirection.OUT)
    state = rig.scheduler.state
    (copy,) = state.copies.values()
    num_preemptions = state.counters.num_preemptions
    fenced = set(copy.device_blocks)
    assert fenced and set(copy.host_blocks).isdisjoint(state.host_blocks)

    def check() -> None:
        allocated = {block for run in state.running for block in run.blocks}
        assert allocated.isdisjoint(fenced) and state.counters.num_preemptions == num_preemptions

    assert rig.until(lambda: copy.number not in state.copies, check) > 1
    rig.run()
    assert_outputs(rig, *NAMES)


def test_what_is_on_its_way_in_is_planned_only_when_it_is_there() -> None:
    rig = crowded(copy_lag=3)
    run_until_copying(rig, CopyDirection.IN)
    state = rig.scheduler.state
    run = next(run for run in state.running if run.copy is not None)

    def check() -> None:
        assert not any(run in record.rows for record in state.inflight)

    rig.until(lambda: run.copy is None, check)
    rig.run()
    assert_outputs(rig, *NAMES)


def test_a_victim_that_does_not_fit_the_host_pool_is_computed_again() -> None:
    rig = crowded(num_host_blocks=1)
    rig.run()
    assert_outputs(rig, *NAMES)
    assert rig.scheduler.state.counters.num_preemptions > 0 and not copies_of(rig.plans, CopyDirection.OUT)


def test_a_host_pool_for_one_holds_one() -> None:
    """Blocks are counted after every event; here both ways of giving way must have been taken."""
    rig = crowded(num_host_blocks=3)
    rig.run()
    assert_outputs(rig, *NAMES)
    num_swapped = len(copies_of(rig.plans, CopyDirection.OUT))
    assert 0 < num_swapped < rig.scheduler.state.counters.num_preemptions
    for copy in copies_of(rig.plans, CopyDirection.OUT):
        assert set(columns.unpack(copy.destinations)) <= {0, 1, 2}


def test_a_plan_without_rows_fetches_a_copy_that_all_wait_for() -> None:
    """One alone in the pool: everything that it waits for is its own copy."""
    rig = crowded(copy_lag=3)
    run_until_copying(rig, CopyDirection.OUT)
    for name in ("a", "b"):
        rig.cancel(Identity("g", name, 1))
    (copy,) = rig.scheduler.state.copies.values()
    while rig.executor.plans:
        rig.deliver()
    assert copy.number in rig.scheduler.state.copies
    plan = rig.plan()
    assert plan is not None and not plan.slots
    assert rig.plan() is None, "one is enough"
    rig.deliver()
    assert copy.number not in rig.scheduler.state.copies
    rig.run()
    assert_outputs(rig, "c")


@pytest.mark.parametrize("direction", [CopyDirection.OUT, CopyDirection.IN])
def test_a_cancel_while_copying_frees_both_sides_when_the_copy_is_reported(direction: CopyDirection) -> None:
    """Nobody may take the blocks before; the last of them is back when all is over."""
    rig = crowded(copy_lag=3)
    run_until_copying(rig, direction)
    state = rig.scheduler.state
    copy = next(copy for copy in state.copies.values() if copy.direction == direction)
    sequence = copy.sequence or (copy.run and copy.run.sequence)
    assert sequence
    name = sequence.key.request
    rig.cancel(Identity("g", name, 1))
    assert rig.close_of(name).reason == FinishReason.CANCELLED
    assert copy.number in state.copies and set(copy.host_blocks).isdisjoint(state.host_blocks)
    assert all(state.pool.holders()[block] >= 1 for block in copy.device_blocks)
    rig.run()
    assert_outputs(rig, *(other for other in NAMES if other != name))


@pytest.mark.parametrize("num_more", range(4))
@pytest.mark.parametrize("direction", [CopyDirection.OUT, CopyDirection.IN])
@pytest.mark.parametrize("how", ["row", "step", "executor"])
def test_each_kind_of_failure_with_a_copy_under_way(how: str, direction: CopyDirection, num_more: int) -> None:
    """Also some events later. A copy out that was not reported is computed again, one in returns to host memory."""
    rig = crowded(copy_lag=3)
    run_until_copying(rig, direction)
    for _ in range(num_more):
        if rig.plan() is None:
            rig.deliver()
    if how == "executor":
        rig.kill_executor()
        assert all(sequence.swapped is None for sequence in rig.scheduler.state.waiting)
    else:
        inflight = rig.scheduler.state.inflight
        rig.until(lambda: bool(inflight and inflight[0].rows))
        rig.deliver(fails=how == "step", poison=0 if how == "row" else None)
    if how != "row":
        assert not rig.scheduler.state.copies
    rig.run()
    failed = [key.request for key, close in rig.closes.items() if close.reason == FinishReason.FAILED]
    assert len(failed) == (how == "row")
    assert_outputs(rig, *(name for name in NAMES if name not in failed))


@pytest.mark.parametrize("direction", [CopyDirection.OUT, CopyDirection.IN])
@pytest.mark.parametrize("how", ["step", "executor"])
def test_a_failure_after_the_sequence_of_a_copy_has_ended(how: str, direction: CopyDirection) -> None:
    """Nobody is left whom the copy could be given back to: both sides are free."""
    rig = crowded(copy_lag=3)
    run_until_copying(rig, direction)
    copy = next(copy for copy in rig.scheduler.state.copies.values() if copy.direction == direction)
    sequence = copy.sequence or (copy.run and copy.run.sequence)
    assert sequence
    rig.cancel(Identity("g", sequence.key.request, 1))
    if how == "executor":
        rig.kill_executor()
    else:
        rig.until(lambda: bool(rig.executor.plans))
        rig.deliver(fails=True)
    assert set(copy.host_blocks) <= set(rig.scheduler.state.host_blocks)
    rig.run()
    assert_outputs(rig, *(name for name in NAMES if name != sequence.key.request))


def test_an_unreported_copy_in_returns_to_host_memory_and_comes_again() -> None:
    rig = crowded(copy_lag=3)
    run_until_copying(rig, CopyDirection.IN)
    copy = next(copy for copy in rig.scheduler.state.copies.values() if copy.run is not None)
    assert copy.run is not None
    sequence, host_blocks = copy.run.sequence, copy.host_blocks
    rig.scheduler.flush_cache()
    if not rig.executor.plans:
        rig.plan()
    rig.deliver(fails=True)
    assert set(copy.device_blocks).isdisjoint(rig.scheduler.state.cache.contents()), "what they hold is unknown"
    assert sequence.swapped is not None and sequence.swapped.is_there
    assert sequence.swapped.host_blocks == host_blocks
    before = sum(count for rows in rig.row_history for _, count in rows)
    assert before < 3 * (5 + 19)
    rig.run()
    assert_outputs(rig, *NAMES)


def test_a_sequence_that_is_ending_is_not_swapped_out() -> None:
    """Its last row is in flight; what is in flight ends it, so its KV is worth nothing."""
    rig = Rig(limits(depth=2, preemption="swap"), num_blocks=9, block_size=4, num_host_blocks=16)
    rig.submit(submit_message("ending", PROMPT, max_tokens=1))
    rig.plan()
    (run,) = rig.scheduler.state.running
    assert run.is_ending
    rig.submit(submit_message("big", [3] * 26, max_tokens=6))
    for sequence in list(rig.scheduler.state.waiting):
        sequence.blame = 2  # it may take anybody's place
        rig.scheduler.state.suspects[sequence] = None
    rig.run()
    assert not copies_of(rig.plans, CopyDirection.OUT)
    assert rig.output("ending") == continuation(PROMPT, 0, 1)


@pytest.mark.parametrize(
    ("pace", "swaps"),
    [
        (Pace(fixed_us=100, token_us=1000, block_us=10), True),
        (Pace(fixed_us=100, token_us=10, block_us=100_000), False),
    ],
    ids=["slow compute, quick copies", "quick compute, slow copies"],
)
def test_auto_takes_what_costs_less_on_the_device_that_is_there(pace: Pace, swaps: bool) -> None:
    rig = Rig(
        limits(depth=2, preemption="auto", forecast=False), num_blocks=27, block_size=4, num_host_blocks=64, pace=pace
    )
    for number in range(12):
        rig.submit(submit_message(f"r{number}", PROMPT * 5, max_tokens=40, salt=str(number)))
    rig.run()
    for number in range(12):
        assert rig.output(f"r{number}") == continuation(PROMPT * 5, 0, 40)
    num_swapped = len(copies_of(rig.plans, CopyDirection.OUT))
    num_preemptions = rig.scheduler.state.counters.num_preemptions
    assert num_preemptions > 8
    assert num_swapped == num_preemptions if swaps else num_swapped == 1, "one is what it costs to know"


@pytest.mark.parametrize("copy_lag", [0, 1, 3])
def test_a_copy_costs_the_steps_that_it_outlasts(copy_lag: int) -> None:
    """It is reported by the copy_lag-th step after the one that ordered it; what ended beside a step costs nothing.
    The first needs a block and takes the last one's; the second has room for four steps more."""
    rig = Rig(
        limits(preemption="swap", forecast=False),
        num_blocks=6,
        block_size=8,
        num_host_blocks=8,
        copy_lag=copy_lag,
        pace=Pace(fixed_us=4000),
    )
    for name, length in (("first", 5), ("second", 9), ("last", 9)):
        rig.submit(submit_message(name, [3] * length, max_tokens=16, salt=name))
    run_until_copying(rig, CopyDirection.OUT)
    state = rig.scheduler.state
    (copy,) = state.copies.values()
    rig.until(lambda: copy.number not in state.copies)
    assert state.copy_time.us_per_block == pytest.approx(copy_lag * 4000 / len(copy.host_blocks), abs=1)
    rig.run()


def test_no_copy_is_left_when_all_is_over() -> None:
    rig = crowded(copy_lag=3)
    run_until_copying(rig, CopyDirection.OUT)
    assert is_copying_out(rig.scheduler.state)
    rig.scheduler.cancel_all(rig.now)
    rig.run()
    rig.assert_idle()
