"""The waiting queue by itself: order, passing over, and groups whose ranks change while they are looked at."""

from array import array

import pytest

from services.scheduler.core.policy import FAIR, FCFS, priority
from services.scheduler.core.sequence import Request, Sequence, Tenant
from services.scheduler.core.waiting import WaitingQueue
from services.wire.messages import Identity, Output, Sampling, SequenceKey, Stopping


def sequence(arrival: int, tenant: Tenant | None = None, level: int = 0) -> Sequence:
    request = Request(Identity("g", f"r{arrival}", 1), None)
    made = Sequence(request, SequenceKey("g", f"r{arrival}", 1, 0), array("i", [3]), (Sampling(), Stopping(), Output()))
    made.arrival, made.t_submitted, made.priority = arrival, arrival, level
    made.tenant = tenant or made.tenant
    return made


def arrivals(queue: WaitingQueue) -> list[int]:
    return [waiting.arrival for waiting in queue.candidates()]


def test_whoever_returns_takes_the_place_that_its_order_gives_it() -> None:
    queue = WaitingQueue(FCFS)
    members = {arrival: sequence(arrival) for arrival in (4, 1, 3)}
    for member in members.values():
        queue.add(member)
    queue.remove(members[3])
    queue.add(sequence(2))
    assert arrivals(queue) == [1, 2, 4] and len(queue) == 3


def test_priority_and_age_make_one_fixed_order() -> None:
    queue = WaitingQueue(priority(10))
    for arrival, level in ((0, 0), (5, 1), (6, 0), (15, 2), (40, 3)):
        queue.add(sequence(arrival, level=level))
    assert arrivals(queue) == [5, 15, 0, 6, 40], "5 and 15 are worth -5 each, and the older goes first"


def test_one_that_is_taken_while_it_is_looked_at_makes_room_for_the_next() -> None:
    queue = WaitingQueue(FCFS)
    for arrival in range(5):
        queue.add(sequence(arrival))
    seen: list[int] = []
    for waiting in queue.candidates():
        seen.append(waiting.arrival)
        if waiting.arrival % 2 == 0:
            queue.remove(waiting)  # the others are passed over
    assert seen == [0, 1, 2, 3, 4] and arrivals(queue) == [1, 3]


def test_the_last_of_a_group_may_be_taken_while_it_is_looked_at() -> None:
    queue = WaitingQueue(FCFS)
    queue.add(sequence(0))
    for waiting in queue.candidates():
        queue.remove(waiting)
    assert len(queue) == 0 and not arrivals(queue) and not list(queue)


def test_the_least_served_group_goes_first_and_ranks_are_read_anew() -> None:
    """Serving one tenant lets the other go first, within one look."""
    one, other = Tenant("one"), Tenant("other")
    queue = WaitingQueue(FAIR)
    for arrival in range(6):
        queue.add(sequence(arrival, one if arrival < 3 else other))
    served: list[int] = []
    for waiting in queue.candidates():
        served.append(waiting.arrival)
        queue.remove(waiting)
        waiting.tenant.served += 10
    assert served == [0, 3, 1, 4, 2, 5]


def test_within_a_group_a_passed_over_member_is_seen_once() -> None:
    one, other = Tenant("one"), Tenant("other")
    other.served = 5
    queue = WaitingQueue(FAIR)
    for arrival in range(4):
        queue.add(sequence(arrival, one if arrival % 2 == 0 else other))
    assert arrivals(queue) == [0, 2, 1, 3]
    assert sorted(waiting.arrival for waiting in queue) == [0, 1, 2, 3]


def test_only_a_member_can_be_removed() -> None:
    queue = WaitingQueue(FCFS)
    queue.add(sequence(1))
    queue.add(sequence(2))
    with pytest.raises(AssertionError, match="not waiting"):
        queue.remove(sequence(1))
