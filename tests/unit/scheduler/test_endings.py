"""What has ended is gone at once: nothing of it waits for the collector of cycles, which would stop the world."""

import gc
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from services.scheduler.core.sequence import Copy, Request, Run, Sequence, Swapped
from services.wire.messages import CopyDirection, Identity
from tests.unit.scheduler.rig import Rig, limits, submit_message

RECORDS = (Request, Sequence, Run, Copy, Swapped)


@pytest.fixture
def before() -> Iterator[Counter[type]]:
    """The records that others have left, with the collector off from then on."""
    gc.collect()
    gc.disable()
    yield records()
    gc.enable()


def records() -> Counter[type]:
    # Not isinstance, which asks a thing for its class: a library's stand-in for a module would import it, and warn.
    return Counter(type(thing) for thing in gc.get_objects() if type(thing) in RECORDS)


def assert_gone(rig: Rig, before: Counter[type]) -> None:
    """Of all that ended only the rows of the last step are remembered: the next plan is a difference from them."""
    rig.submit(submit_message("last", [3, 4], max_tokens=2))
    rig.run()
    left = records() - before
    assert left == Counter({Request: 1, Sequence: 1, Run: 1})


def test_samples_that_end_one_by_one(before: Counter[type]) -> None:
    rig = Rig(num_blocks=64)
    for number in range(5):
        rig.submit(submit_message(f"{number}", [3, 4, 5, 6, 7], n=3, max_tokens=4 + number, seed=number))
    rig.run()
    assert rig.scheduler.state.counters.num_forks
    assert_gone(rig, before)


def test_requests_that_are_cancelled_refused_or_replaced(before: Counter[type]) -> None:
    rig = Rig(limits(max_waiting=3), max_rows=1)
    for number in range(6):
        rig.submit(submit_message(f"{number}", [3] * 6, n=2))
    rig.turns(2)
    rig.submit(submit_message("0", [3] * 6, incarnation=2))
    rig.cancel(Identity("g", "0", 2))
    rig.run()
    assert_gone(rig, before)


def test_requests_that_were_swapped_out_and_in(before: Counter[type]) -> None:
    rig = Rig(limits(preemption="swap", forecast=False), num_blocks=9, num_host_blocks=16, copy_lag=1)
    for number in range(4):
        rig.submit(submit_message(f"{number}", [3] * 5, max_tokens=12))
    rig.run()
    assert rig.scheduler.state.num_copies > 2
    assert_gone(rig, before)


def is_copying(rig: Rig, direction: CopyDirection) -> bool:
    return [copy.direction for copy in rig.scheduler.state.copies.values()] == [direction]


def test_requests_whose_copy_was_under_way_when_a_step_failed(before: Counter[type]) -> None:
    rig = Rig(limits(preemption="swap", forecast=False), num_blocks=9, num_host_blocks=16, copy_lag=3)
    for number in range(4):
        rig.submit(submit_message(f"{number}", [3] * 5, max_tokens=12))
    for direction in CopyDirection.OUT, CopyDirection.IN:
        rig.until(partial(is_copying, rig, direction))
        rig.plan()
        rig.deliver(fails=True)
    rig.run()
    assert_gone(rig, before)


def test_requests_of_a_failed_step_and_of_a_dead_executor(before: Counter[type]) -> None:
    rig = Rig()
    for number in range(4):
        rig.submit(submit_message(f"{number}", [3] * 5))
    rig.turns(2)
    rig.plan()
    rig.deliver(fails=True)
    rig.turns(2)
    rig.kill_executor()
    rig.run()
    assert_gone(rig, before)
