"""Deadlines that cannot be met are refused at the door, by the measured rate and those who go first."""

from services.scheduler.core.policy import FCFS, Policy, priority
from services.wire.messages import FailureReason, FinishReason
from tests.unit.scheduler.rig import Rig, limits, submit_message

MS = 1_000_000


def busy(policy: Policy = FCFS, num_waiting: int = 10, n: int = 1) -> Rig:
    """One request ends every 10 ms; one runs and others wait."""
    rig = Rig(limits(max_num_seqs=1), policy=policy)
    for number in range(20):
        rig.submit(submit_message(f"done{number}", [3], max_tokens=1))
        rig.now += 10 * MS
        rig.run()
    rig.submit(submit_message("runs", [3], max_tokens=40))
    rig.turns(1)
    for number in range(num_waiting):
        rig.submit(submit_message(f"waits{number}", [3], max_tokens=1, n=n))
    return rig


def test_a_deadline_that_the_queue_cannot_meet_is_refused_at_once() -> None:
    rig = busy()
    rig.submit(submit_message("soon", [3], max_tokens=1, remaining_ms=80))
    close = rig.close_of("soon")
    assert (close.reason, close.failure) == (FinishReason.FAILED, FailureReason.DEADLINE_UNREACHABLE)
    assert "80 ms" in close.detail
    rig.submit(submit_message("later", [3], max_tokens=1, remaining_ms=120))
    rig.run()
    assert rig.close_of("later").reason == FinishReason.LENGTH


def test_requests_are_counted_not_their_samples() -> None:
    rig = busy(num_waiting=4, n=5)
    rig.submit(submit_message("soon", [3], max_tokens=1, remaining_ms=50))
    rig.run()
    assert rig.close_of("soon").reason == FinishReason.LENGTH


def test_only_those_count_who_go_first() -> None:
    rig = busy(priority())
    rig.submit(submit_message("urgent", [3], max_tokens=1, remaining_ms=80, priority=1))
    rig.submit(submit_message("equal", [3], max_tokens=1, remaining_ms=80))
    rig.run()
    assert rig.close_of("urgent").reason == FinishReason.LENGTH
    assert rig.close_of("equal").failure == FailureReason.DEADLINE_UNREACHABLE


def test_nothing_is_refused_before_a_rate_is_known_or_when_nobody_waits() -> None:
    rig = Rig(limits(max_num_seqs=1))
    for number in range(5):
        rig.submit(submit_message(f"r{number}", [3], max_tokens=1, remaining_ms=1))
    assert not rig.closes
    rig.run()
    quiet = busy(num_waiting=0)
    quiet.submit(submit_message("soon", [3], max_tokens=1, remaining_ms=1))
    quiet.run()
    assert quiet.close_of("soon").reason == FinishReason.LENGTH


def test_the_time_that_a_server_had_nothing_to_do_is_nobodys_delay() -> None:
    rig = busy(num_waiting=0)
    rig.run()
    rig.now += 3_600_000 * MS
    for number in range(5):
        rig.submit(submit_message(f"r{number}", [3], max_tokens=1, remaining_ms=1000))
    rig.run()
    assert [rig.close_of(f"r{number}").reason for number in range(5)] == [FinishReason.LENGTH] * 5


def test_a_request_that_came_too_late_needs_no_rate() -> None:
    rig = Rig()
    rig.submit(submit_message("late", [3], max_tokens=1, remaining_ms=-5))
    assert rig.close_of("late").failure == FailureReason.DEADLINE


def test_every_sample_of_an_expired_request_ends() -> None:
    rig = Rig(limits(max_num_seqs=2))
    rig.submit(submit_message("a", [3], max_tokens=50, n=3, remaining_ms=5))
    rig.turns(2)
    rig.now += 10 * MS
    rig.scheduler.expire(rig.now)
    rig.run()
    assert {rig.close_of("a", index=index).failure for index in range(3)} == {FailureReason.DEADLINE}
    assert rig.scheduler.next_deadline() is None
