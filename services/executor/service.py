"""The shell of the executor: one thread for the links, one for the device, one that compiles constraints.

A device that works on its own has a second thread, the waiter, which sleeps until a step is over and makes its result,
while the first launches the next.

The I/O thread receives plans, decodes them while the step before them runs, and shows that this process lives, however
long a step takes. The others take work from a queue, and each sends what comes of it itself, at once: a thread that had
to be woken for it would be 0.3 ms late, and the scheduler's next plan with it. None spins and none waits for another.
Links, clock and backend come in from outside.
"""

import time
from collections.abc import Callable
from typing import Protocol

import structlog

from services.executor.answers import Launched, Work
from services.executor.core import ExecutorCore
from services.executor.threads import Stage, TwoThreads, WorkThread
from services.runtime import logs
from services.wire.link import Inlet
from services.wire.liveness import Heart, is_silent
from services.wire.messages import PlanMessage, Prepare, Release, ResultMessage, SetExecutorLog
from services.wire.shared import SharedOutlet

log = structlog.get_logger()

# Plans that may wait: three unacknowledged ones and a Hello, twice over. A scheduler that sends more is broken.
MAX_WAITING = 8
# Constraints that may wait to be compiled: the most that settings let a scheduler ask for at once.
MAX_PREPARING = 256


class PeerSilent(Exception):
    """The scheduler was heard once and is silent now: there is nobody left to work for."""


class Wakeable(Protocol):
    """A Poller of links, or whatever waits in its place."""

    def wait(self, timeout_s: float) -> None:
        """Return when a plan may have arrived, when a wake came, or after timeout_s."""


class ExecutorService:
    """The I/O thread's loop."""

    def __init__(
        self,
        core: ExecutorCore,
        plans: Inlet[PlanMessage],
        results: SharedOutlet[ResultMessage],
        heart: Heart,
        death_s: float,
    ) -> None:
        self._core = core
        self._plans = plans
        self._results = results
        self._heart = heart
        self._death_s = death_s

    def run(self, poller: Wakeable, wake: Callable[[], None], is_stopped: Callable[[], bool], wait_s: float) -> None:
        """Serve until is_stopped; looks at it, at the heart and at the peer at least every wait_s."""
        self._results.send(self._core.opening())
        compute = self._open_compute(wake)
        compiling = WorkThread("compile", self._compile, wake, MAX_PREPARING)
        try:
            log.info("executor.opened")
            while not is_stopped():
                poller.wait(wait_s)
                self._turn(compute, compiling)
        finally:
            compute.stop()
            compiling.stop()

    def _turn(self, compute: Stage[Work], compiling: Stage[Prepare]) -> None:
        compute.check()
        compiling.check()
        for message in self._plans.receive():
            match message:
                case Prepare():
                    compiling.put(message)
                case Release():
                    self._core.grammars.release(message.number)
                case SetExecutorLog():
                    logs.set_level(message.level)
                case _:
                    work = self._core.prepare(message, time.monotonic_ns())
                    if work is not None:
                        compute.put(work)
        now = time.monotonic()
        self._heart.beat(now)
        if is_silent(self._plans, now, self._death_s):
            log.error("peer.silent", peer="scheduler")
            raise PeerSilent(f"the scheduler has been silent for {self._death_s} s")

    def _open_compute(self, wake: Callable[[], None]) -> Stage[Work]:
        if self._core.overlaps:
            return TwoThreads(self._core.launch, self._finish, wake, MAX_WAITING)
        return WorkThread("compute", self._execute, wake, MAX_WAITING)

    def _execute(self, work: Work) -> None:
        self._results.send(self._core.execute(work))

    def _finish(self, launched: Launched) -> None:
        self._results.send(self._core.finish(launched))

    def _compile(self, message: Prepare) -> None:
        self._results.send(self._core.grammars.prepare(message))
