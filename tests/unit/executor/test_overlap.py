"""Steps in flight: a backend whose steps end when the test says so, launched ahead and answered in order."""

import queue
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from services.executor.answers import Launched
from services.executor.backend import NO_ROWS, Outcome, Pending, Unsupported
from services.executor.batch import StepBatch
from services.executor.capacity import Capacity
from services.executor.core import ExecutorCore
from services.executor.threads import TwoThreads
from services.wire import columns
from services.wire.messages import (
    CopyBlocks,
    FailureReason,
    Hello,
    Op,
    Ready,
    ResultMessage,
    Sampling,
    SlotInit,
    SlotRetire,
    StepMessage,
    StepPlan,
    StepResult,
    StepStatus,
)
from tests.unit.executor.rig import Row, append, init, plan, small_capacity, tokens_of

PATIENCE_S = 20.0
TWO_SLOTS: list[Op] = [init(1), init(2), append(1, [1, 2, 3]), append(2, [4, 5])]
TWO_ROWS = [Row(1, 0, [5]), Row(2, 0, [7])]


@dataclass
class Flight:
    """A step under way. Its tokens are the slots, 100 more with each step."""

    batch: StepBatch
    poison: list[int] = field(default_factory=list)
    error: Exception | None = None
    was_waited_for: bool = False
    is_over: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> Outcome:
        assert self.is_over.wait(PATIENCE_S)
        self.was_waited_for = True
        if self.error is not None:
            raise self.error
        tokens = self.batch.slots[self.batch.sampling_rows] + np.int32(100 * self.batch.step)
        return Outcome(tokens, np.array(self.poison, np.int64) if self.poison else NO_ROWS)


class Airfield:
    """An Overlapping backend that keeps every flight."""

    def __init__(self) -> None:
        self.capacity: Capacity = small_capacity()
        self.flights: list[Flight] = []
        self.failed_slots: list[int] = []
        self.error: Exception | None = None
        self.took_off = threading.Semaphore(0)

    def begin_epoch(self) -> None:
        pass

    def init_slot(self, op: SlotInit) -> None:
        pass

    def fail_slot(self, slot: int) -> None:
        self.failed_slots.append(slot)

    def copy_blocks(self, op: CopyBlocks) -> None:
        raise NotImplementedError

    def run(self, batch: StepBatch) -> Outcome:
        return self.launch(batch).wait()

    def launch(self, batch: StepBatch) -> Pending:
        if self.error is not None:
            raise self.error
        flight = Flight(batch)
        self.flights.append(flight)
        self.took_off.release()
        return flight


class Pilot:
    """Launches plans in epoch 1 and finishes them when told to."""

    def __init__(self) -> None:
        self.backend = Airfield()
        self.core = ExecutorCore(self.backend, instance=1)
        self.waiting: list[Launched] = []
        self.launch(Hello(1))
        self.finish_hello()

    def launch(self, message: StepMessage) -> None:
        work = self.core.prepare(message, 0)
        assert work is not None
        self.waiting.append(self.core.launch(work))

    def finish(self) -> StepResult:
        result = self._finish()
        assert isinstance(result, StepResult)
        return result

    def finish_hello(self) -> Ready:
        result = self._finish()
        assert isinstance(result, Ready)
        return result

    def _finish(self) -> ResultMessage:
        for flight in self.backend.flights:
            flight.is_over.set()
        return self.core.finish(self.waiting.pop(0))


def failures_of(result: StepResult) -> list[tuple[int, FailureReason]]:
    return [(failed.row, failed.failure) for failed in result.failed_rows]


def test_three_steps_fly_at_once_and_are_answered_in_order() -> None:
    pilot = Pilot()
    for message in (plan(1, TWO_SLOTS, TWO_ROWS), plan(2), plan(3, dropped=[0])):
        pilot.launch(message)
    assert len(pilot.backend.flights) == 3
    assert not any(flight.was_waited_for for flight in pilot.backend.flights)
    assert [tokens_of(pilot.finish()) for _ in range(3)] == [[101, 102], [201, 202], [302]]


def test_rows_launched_before_a_poisoned_one_was_known_fail_with_it() -> None:
    pilot = Pilot()
    pilot.launch(plan(1, TWO_SLOTS, TWO_ROWS))
    pilot.launch(plan(2))
    pilot.backend.flights[0].poison = [0]
    first, second = pilot.finish(), pilot.finish()
    assert failures_of(first) == failures_of(second) == [(0, FailureReason.POISONED_ROW)]
    assert second.failed_rows[0].detail == first.failed_rows[0].detail
    assert tokens_of(second) == [202] and columns.unpack(second.n_out).tolist() == [0, 1]
    assert pilot.backend.failed_slots == []
    pilot.launch(plan(3))
    assert pilot.backend.failed_slots == [1]  # by the thread that launches, before what it launches next


def test_a_generation_that_began_before_the_last_one_was_known_to_fail_is_healthy() -> None:
    pilot = Pilot()
    pilot.launch(plan(1, TWO_SLOTS, TWO_ROWS))
    pilot.launch(plan(2, [SlotRetire(1, 1), init(1), append(1, [9])], [Row(1, 0, [5])], dropped=[0]))
    pilot.backend.flights[0].poison = [0]
    assert failures_of(pilot.finish()) == [(0, FailureReason.POISONED_ROW)]
    assert tokens_of(pilot.finish()) == [202, 201]
    pilot.launch(plan(3))
    assert tokens_of(pilot.finish()) == [302, 301]
    assert pilot.backend.failed_slots == []


def test_a_step_that_fails_in_flight_takes_those_behind_it_along() -> None:
    pilot = Pilot()
    pilot.launch(plan(1, TWO_SLOTS, TWO_ROWS))
    pilot.launch(plan(2))
    pilot.backend.flights[0].error = RuntimeError("an illegal address")
    first, second = pilot.finish(), pilot.finish()
    assert first.status == second.status == StepStatus.FAILED
    assert first.detail == second.detail == "step 1: RuntimeError: an illegal address"
    assert pilot.backend.flights[1].was_waited_for  # what it holds must be given back
    pilot.launch(plan(3))
    assert len(pilot.backend.flights) == 2 and pilot.finish().detail == first.detail


def test_a_step_that_cannot_be_launched_leaves_those_before_it_as_they_are() -> None:
    pilot = Pilot()
    pilot.launch(plan(1, TWO_SLOTS, TWO_ROWS))
    pilot.backend.error = RuntimeError("out of memory")
    pilot.launch(plan(2))
    pilot.backend.error = None
    pilot.launch(plan(3))
    assert tokens_of(pilot.finish()) == [101, 102]
    assert [pilot.finish().detail for _ in range(2)] == ["step 2: RuntimeError: out of memory"] * 2
    assert len(pilot.backend.flights) == 1


def test_what_fails_of_an_old_epoch_after_the_next_has_begun_is_no_matter_of_it() -> None:
    pilot = Pilot()
    pilot.launch(plan(1, TWO_SLOTS, TWO_ROWS))
    pilot.launch(plan(2))
    pilot.launch(Hello(2))
    pilot.backend.flights[0].poison = [1]
    pilot.backend.flights[1].error = RuntimeError("late")
    assert failures_of(pilot.finish()) == [(1, FailureReason.POISONED_ROW)]
    assert pilot.finish().status == StepStatus.FAILED
    pilot.launch(plan(3, TWO_SLOTS, TWO_ROWS, epoch=2))
    assert pilot.finish_hello().epoch == 2
    assert tokens_of(pilot.finish()) == [301, 302]
    assert pilot.backend.failed_slots == []


def test_a_refused_slot_is_refused_in_every_row_and_nobody_else_is() -> None:
    class Choosy(Airfield):
        def init_slot(self, op: SlotInit) -> None:
            if op.sampling.top_k:
                raise Unsupported("no top_k here")

    pilot = Pilot()
    pilot.core = ExecutorCore(backend := Choosy(), instance=1)
    pilot.backend = backend
    pilot.launch(Hello(1))
    pilot.finish_hello()
    ops: list[Op] = [init(1, sampling=Sampling(top_k=3)), init(2), append(1, [1]), append(2, [4])]
    pilot.launch(plan(1, ops, TWO_ROWS))
    pilot.launch(plan(2))
    assert [failures_of(pilot.finish()) for _ in range(2)] == [[(0, FailureReason.STEP_FAILED)]] * 2
    assert backend.failed_slots == [1]


class Threads:
    """The two threads over a core, what came of their works, and whether one crashed."""

    def __init__(self, backend: Airfield) -> None:
        self.backend = backend
        self.core = ExecutorCore(backend, instance=1)
        self.results: queue.SimpleQueue[ResultMessage] = queue.SimpleQueue()
        self.crashed = threading.Event()
        self.stage = TwoThreads(self.core.launch, self._finish, self.crashed.set, max_waiting=8)

    def _finish(self, launched: Launched) -> None:
        self.results.put(self.core.finish(launched))

    def put(self, *plans: StepPlan | Hello) -> None:
        for message in plans:
            work = self.core.prepare(message, 0)
            assert work is not None
            self.stage.put(work)

    def result(self) -> ResultMessage:
        return self.results.get(timeout=PATIENCE_S)


def test_the_next_step_is_launched_while_one_runs() -> None:
    threads = Threads(Airfield())
    try:
        threads.put(Hello(1), plan(1, TWO_SLOTS, TWO_ROWS), plan(2))
        assert isinstance(threads.result(), Ready)
        for _ in range(2):
            assert threads.backend.took_off.acquire(timeout=PATIENCE_S)
        assert threads.results.empty()
        for number, flight in enumerate(threads.backend.flights, 1):
            flight.is_over.set()
            result = threads.result()
            assert isinstance(result, StepResult) and result.step == number
        threads.stage.check()
        assert not threads.crashed.is_set()
    finally:
        threads.stage.stop()


@pytest.mark.parametrize("place", ["launch", "wait"])
def test_a_bug_in_either_thread_is_loud(place: str) -> None:
    threads = Threads(Airfield())
    threads.put(Hello(1))
    threads.result()
    if place == "launch":
        threads.backend.error = TypeError("a bug")
    threads.put(plan(1, TWO_SLOTS, TWO_ROWS))
    if place == "wait":
        assert threads.backend.took_off.acquire(timeout=PATIENCE_S)
        threads.backend.flights[0].error = TypeError("a bug")
        threads.backend.flights[0].is_over.set()
    assert threads.crashed.wait(PATIENCE_S)
    with pytest.raises(TypeError, match="a bug"):
        threads.stage.check()
    threads.stage.stop()
