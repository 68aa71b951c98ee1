"""When a dead executor is started again, how long the pauses are, and when it is not started any more."""

import math

import pytest

from services.runtime.restarts import FIRST_PAUSE_S, LONGEST_PAUSE_S, Restarts
from services.runtime.settings import ExecutorSettings


def die(restarts: Restarts, now: float, was_ready: bool = True) -> float:
    """A death that leads to a restart; the pause before it."""
    assert restarts.died(now, was_ready) == ""
    return restarts.due - now


def test_nothing_is_due_before_a_death() -> None:
    restarts = Restarts(3, 300.0)
    assert restarts.due == math.inf
    assert not restarts.take_due(1e9)


def test_a_start_falls_due_once_after_its_pause() -> None:
    restarts = Restarts(3, 300.0)
    die(restarts, 10.0)
    assert not restarts.take_due(10.0 + FIRST_PAUSE_S * 0.99)
    assert restarts.take_due(10.0 + FIRST_PAUSE_S)
    assert restarts.due == math.inf
    assert not restarts.take_due(1e9)


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    restarts = Restarts(1000, 300.0)
    pauses = [die(restarts, 0.0) for _ in range(200)]
    assert pauses[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    assert set(pauses[6:]) == {LONGEST_PAUSE_S}


@pytest.mark.parametrize("count", [1, 3, 10])
def test_more_deaths_than_allowed_end_it(count: int) -> None:
    restarts = Restarts(count, 300.0)
    for number in range(count):
        die(restarts, float(number))
        assert restarts.take_due(1e6)
    assert restarts.died(299.9, True) == f"no more than {count} restarts in 300 s are allowed"
    assert restarts.due == math.inf


def test_deaths_that_lie_behind_the_window_do_not_count() -> None:
    restarts = Restarts(2, 300.0)
    for now in (0.0, 200.0, 300.0, 500.0, 600.0):
        die(restarts, now)
    assert restarts.died(601.0, True) != ""


def test_after_a_whole_window_without_a_death_the_pause_is_short_again() -> None:
    restarts = Restarts(5, 300.0)
    assert [die(restarts, now) for now in (0.0, 100.0, 200.0)] == pytest.approx([0.1, 0.2, 0.4])
    assert die(restarts, 499.9) == pytest.approx(0.8)
    assert die(restarts, 800.0) == pytest.approx(0.1)


def test_without_restarts_the_first_death_is_the_last() -> None:
    assert Restarts(0, 300.0).died(0.0, True) != ""


def test_what_was_never_ready_is_not_started_again() -> None:
    restarts = Restarts(3, 300.0)
    assert restarts.died(0.0, False) == "it was never ready"
    assert restarts.due == math.inf


def test_once_one_was_ready_another_that_does_not_become_ready_is_tried_again_within_the_bound() -> None:
    restarts = Restarts(3, 300.0)
    die(restarts, 0.0)
    assert die(restarts, 1.0, was_ready=False) == pytest.approx(0.2)
    assert die(restarts, 2.0, was_ready=False) == pytest.approx(0.4)
    assert restarts.died(3.0, False) != ""


def test_by_default_an_executor_is_replaced() -> None:
    settings = ExecutorSettings()
    assert Restarts(settings.max_restarts, settings.restart_window_s).died(0.0, True) == ""
