"""The threaded shell: results leave at once, plans are taken in during a step, the heart beats, bugs are loud."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.executor.answers import Work
from services.executor.backend import Outcome
from services.executor.batch import StepBatch
from services.executor.core import ExecutorCore
from services.executor.echo_cells import EchoCells
from services.executor.grammar import GrammarError
from services.executor.grammars import Grammars
from services.executor.service import MAX_WAITING, ExecutorService, PeerSilent
from services.executor.simulated import SimulatedBackend
from services.executor.threads import TooMuchWork, WorkThread
from services.executor.timeline import Timeline
from services.runtime import logs
from services.runtime.settings import ExecutorSettings
from services.wire.link import Inlet, Outlet
from services.wire.links import Poller, open_inlet, open_outlet
from services.wire.liveness import Heart
from services.wire.memory import memory_link
from services.wire.messages import (
    Constraint,
    ConstraintKind,
    Hello,
    PlanMessage,
    Prepare,
    Prepared,
    Ready,
    Release,
    ResultMessage,
    SetExecutorLog,
    StepMessage,
    StepResult,
)
from services.wire.shared import SharedOutlet
from services.wire.topology import PLAN, RESULT
from tests.unit.executor.rig import Row, append, init, plan, small_capacity, tokens_of

PATIENCE_S = 20.0

PrepareWork = Callable[[StepMessage, int], Work | None]


class GatedBackend(SimulatedBackend):
    """Echo, but every step waits until its gate is opened, and fails with `bug` if there is one."""

    def __init__(self, is_open: bool = True) -> None:
        capacity = small_capacity()
        super().__init__(capacity, EchoCells(capacity), Timeline(ExecutorSettings()))
        self.gate = threading.Event()
        self.running = threading.Event()
        self.bug: Exception | None = None
        if is_open:
            self.gate.set()

    def run(self, batch: StepBatch) -> Outcome:
        self.running.set()
        assert self.gate.wait(PATIENCE_S)
        if self.bug is not None:
            raise self.bug
        return super().run(batch)


class EventPoller:
    """A poller over memory links."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def wait(self, timeout_s: float) -> None:
        self._event.wait(timeout_s)
        self._event.clear()

    def wake(self) -> None:
        self._event.set()


class Served:
    """A service on a thread of its own, and the scheduler's ends of its links."""

    def __init__(
        self, backend: GatedBackend, clock: Callable[[], float] = time.monotonic, grammars: Grammars | None = None
    ) -> None:
        self.backend = backend
        self.poller = EventPoller()
        self.plans, plan_inlet = memory_link(PLAN, 100, clock)
        outlet, self.results = memory_link(RESULT, 100)
        result_outlet = SharedOutlet(outlet)
        plan_inlet.on_arrival(self.poller.wake)
        self.arrived = threading.Event()
        self.results.on_arrival(self.arrived.set)
        self.prepared = threading.Semaphore(0)  # one more for each message made ready
        self.core = ExecutorCore(backend, instance=5, grammars=grammars)
        prepare: PrepareWork = self.core.prepare
        self.core.prepare = self._noting(prepare)
        self.is_stopped = False
        self.crash: BaseException | None = None
        heart = Heart([result_outlet], every_s=0.01)
        self._service = ExecutorService(self.core, plan_inlet, result_outlet, heart, death_s=60.0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _noting(self, prepare: PrepareWork) -> PrepareWork:
        def noted(message: StepMessage, received_ns: int) -> Work | None:
            work = prepare(message, received_ns)
            self.prepared.release()
            return work

        return noted

    def _run(self) -> None:
        try:
            self._service.run(self.poller, self.poller.wake, lambda: self.is_stopped, wait_s=0.01)
        except BaseException as crash:
            self.crash = crash

    def receive(self, count: int) -> list[ResultMessage]:
        """The next `count` messages."""
        messages: list[ResultMessage] = []
        until = time.monotonic() + PATIENCE_S
        while len(messages) < count and time.monotonic() < until:
            self.arrived.wait(0.05)
            self.arrived.clear()
            messages.extend(self.results.receive())
        assert len(messages) == count, self.crash
        return messages

    def stop(self) -> None:
        self.is_stopped = True
        self.backend.gate.set()
        self.poller.wake()
        self.join()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@contextmanager
def served(backend: GatedBackend | None = None, grammars: Grammars | None = None) -> Iterator[Served]:
    service = Served(backend or GatedBackend(), grammars=grammars)
    try:
        yield service
    finally:
        service.stop()


PROMPT = plan(1, [init(1, 2), append(1, [1, 2])], [Row(1, 0, [11, 12])])


def steps(messages: list[ResultMessage]) -> list[StepResult]:
    return [message for message in messages if isinstance(message, StepResult)]


def test_it_opens_answers_hello_and_runs_steps_in_order() -> None:
    with served() as service:
        for message in (Hello(1), PROMPT, plan(2), plan(3)):
            service.plans.send(message)
        opening, ready, *results = service.receive(5)
    assert isinstance(opening, Ready) and opening.epoch == 0
    assert isinstance(ready, Ready) and ready.epoch == 1
    assert [tokens_of(result) for result in steps(results)] == [[11], [12], [11]]
    assert all(result.t_received <= result.t_launched <= result.t_done for result in steps(results))


def test_it_logs_as_it_is_told_to_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[str] = []
    monkeypatch.setattr(logs, "set_level", levels.append)
    with served() as service:
        for message in (Hello(1), SetExecutorLog("debug"), PROMPT):
            service.plans.send(message)
        service.receive(3)
    assert levels == ["debug"]


def test_the_next_plan_is_taken_in_while_a_step_runs() -> None:
    with served(GatedBackend(is_open=False)) as service:
        service.plans.send(Hello(1))
        service.plans.send(PROMPT)
        service.receive(2)
        assert service.backend.running.wait(PATIENCE_S)
        service.plans.send(plan(2))
        for _ in range(3):
            assert service.prepared.acquire(timeout=PATIENCE_S)
        now_ns = time.monotonic_ns()
        service.backend.gate.set()
        first, second = steps(service.receive(2))
    assert second.t_received <= now_ns <= first.t_done


def test_the_heart_beats_during_a_long_step() -> None:
    with served(GatedBackend(is_open=False)) as service:
        service.plans.send(Hello(1))
        service.plans.send(PROMPT)
        service.receive(2)
        assert service.backend.running.wait(PATIENCE_S)
        for _ in range(3):  # each a frame without a message
            service.arrived.clear()
            assert service.arrived.wait(PATIENCE_S)
            assert service.results.receive() == []
        service.backend.gate.set()
        service.receive(1)


def test_a_failed_step_is_answered_and_the_service_lives_on() -> None:
    with served() as service:
        service.backend.bug = RuntimeError("device lost")
        for message in (Hello(1), PROMPT, plan(2)):
            service.plans.send(message)
        _, _, *results = service.receive(4)
        assert ["device lost" in result.detail for result in steps(results)] == [True, True]
        service.backend.bug = None
        service.plans.send(Hello(2))
        [ready] = service.receive(1)
        assert isinstance(ready, Ready) and ready.epoch == 2


def test_a_bug_in_the_compute_thread_ends_the_service() -> None:
    backend = GatedBackend()
    backend.bug = TypeError("a bug")
    service = Served(backend)
    service.plans.send(Hello(1))
    service.plans.send(PROMPT)
    service.join()
    assert service.crash is backend.bug


def test_a_silent_scheduler_ends_the_service() -> None:
    service = Served(GatedBackend(), clock=lambda: time.monotonic() - 100)
    service.plans.heartbeat()
    service.join()
    assert isinstance(service.crash, PeerSilent)


def test_a_scheduler_that_began_anew_is_not_silent() -> None:
    age = 100.0
    plans, inlet = memory_link(PLAN, 100, lambda: time.monotonic() - age)
    plans.heartbeat()
    inlet.receive()
    age = 0.0
    plans.renew()
    plans.send(Hello(1))
    sending, results = memory_link(RESULT, 100)
    outlet, poller = SharedOutlet(sending), EventPoller()
    service = ExecutorService(ExecutorCore(GatedBackend(), 5), inlet, outlet, Heart([outlet], 1.0), death_s=60.0)
    received: list[ResultMessage] = []

    def has_answered() -> bool:
        received.extend(results.receive())
        return len(received) == 2

    service.run(poller, poller.wake, has_answered, wait_s=0.01)
    assert [message.epoch for message in received if not isinstance(message, Prepared)] == [0, 1]
    assert len(inlet.last_heard()) == 2


def test_more_plans_than_any_scheduler_sends_are_refused() -> None:
    backend = GatedBackend(is_open=False)
    core = ExecutorCore(backend, instance=5)
    messages: list[StepMessage] = [Hello(1), *(plan(step) for step in range(1, 12))]
    works = [core.prepare(message, 0) for message in messages]
    results: list[ResultMessage] = []

    def execute(work: Work) -> None:
        results.append(core.execute(work))

    compute = WorkThread("compute", execute, lambda: None, MAX_WAITING)
    try:
        for work in works[:2]:
            assert work is not None
            compute.put(work)
        assert backend.running.wait(PATIENCE_S)  # the Hello is over, the first step is in the thread's hands
        for work in works[2 : 2 + MAX_WAITING]:
            assert work is not None
            compute.put(work)
        surplus = works[-1]
        assert surplus is not None
        with pytest.raises(TooMuchWork):
            compute.put(surplus)
    finally:
        backend.gate.set()
        compute.stop()


def test_constraints_are_compiled_beside_the_steps_and_steps_run_beside_them() -> None:
    """A step that takes long holds up no answer, and a compilation that takes long no step."""
    compiling, may_end = threading.Event(), threading.Event()

    def compile(constraint: Constraint) -> None:
        if constraint.source == "slow":
            compiling.set()
            assert may_end.wait(PATIENCE_S)
        elif constraint.source == "bad":
            raise GrammarError("bad indeed")

    grammars = Grammars(compile, cache_size=4)
    asked = {source: Constraint(ConstraintKind.REGEX, source) for source in ("good", "bad", "slow")}
    with served(GatedBackend(is_open=False), grammars) as service:
        service.plans.send(Hello(1))
        service.receive(2)
        service.plans.send(PROMPT)
        assert service.backend.running.wait(PATIENCE_S)
        service.plans.send(Prepare(1, asked["good"]))
        service.plans.send(Prepare(2, asked["bad"]))
        assert service.receive(2) == [Prepared(1), Prepared(2, "bad indeed")]
        service.plans.send(Prepare(3, asked["slow"]))
        assert compiling.wait(PATIENCE_S)
        service.backend.gate.set()
        (result,) = steps(service.receive(1))
        assert tokens_of(result) == [11]
        service.plans.send(Release(1))
        may_end.set()
        assert service.receive(1) == [Prepared(3)]
        service.plans.send(Prepare(4, asked["good"]))
        assert service.receive(1) == [Prepared(4)]


def test_it_serves_over_sockets(tmp_path: Path) -> None:
    plan_address, result_address = f"ipc://{tmp_path}/plan", f"ipc://{tmp_path}/result"
    results: Inlet[ResultMessage] = open_inlet(RESULT, result_address)
    inlet = open_inlet(PLAN, plan_address)
    plans: Outlet[PlanMessage] = open_outlet(PLAN, plan_address, 100)
    outlet = SharedOutlet(open_outlet(RESULT, result_address, 100))
    poller = Poller(inlet)
    wake = poller.waker().wake
    stopped = threading.Event()
    service = ExecutorService(ExecutorCore(GatedBackend(), 5), inlet, outlet, Heart([outlet], 1.0), 60.0)
    thread = threading.Thread(target=service.run, args=(poller, wake, stopped.is_set, 0.5))
    thread.start()
    received: list[ResultMessage] = []
    for message in (Hello(1), PROMPT, plan(2)):
        plans.send(message)
    until = time.monotonic() + PATIENCE_S
    while len(received) < 4 and time.monotonic() < until:
        received.extend(results.receive())
        time.sleep(0.001)
    stopped.set()
    wake()
    thread.join(PATIENCE_S)
    poller.close()
    for end in (plans, results, inlet, outlet):
        end.close()
    assert not thread.is_alive()
    assert [tokens_of(result) for result in steps(received)] == [[11], [12]]
