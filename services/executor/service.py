"""The shell of the executor: one thread for the links, one for the device.

The I/O thread receives plans, decodes them while the step before them runs, sends every result the moment it is there,
and shows that this process lives, however long a step takes. The compute thread takes work from a queue. Neither spins
and neither waits for the other. Links, clock and backend come in from outside.
"""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog

from services.executor.core import ExecutorCore, Work
from services.runtime import logs
from services.wire.link import Inlet, Outlet
from services.wire.liveness import Heart, is_silent
from services.wire.messages import PlanMessage, ResultMessage, SetExecutorLog

log = structlog.get_logger()

# Plans that may wait: three unacknowledged ones and a Hello, twice over. A scheduler that sends more is broken.
MAX_WAITING = 8


class PeerSilent(Exception):
    """The scheduler was heard once and is silent now: there is nobody left to work for."""


class TooManyPlans(Exception):
    """More plans are waiting than any scheduler may have unacknowledged."""


class Wakeable(Protocol):
    """A Poller of links.py, or whatever waits in its place."""

    def wait(self, timeout_s: float) -> None:
        """Return when a plan may have arrived, when a wake came, or after timeout_s."""


class ComputeThread:
    """Runs `execute` for one work after the other; results and crashes wait to be taken by the I/O thread."""

    def __init__(self, execute: Callable[[Work], ResultMessage], wake: Callable[[], None]) -> None:
        self._execute = execute
        self._wake = wake
        self._works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._results: deque[ResultMessage] = deque()
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        """Queue one work; raises TooManyPlans at the bound."""
        if self._works.qsize() >= MAX_WAITING:
            raise TooManyPlans(f"{MAX_WAITING} plans are waiting already")
        self._works.put(work)

    def take(self) -> list[ResultMessage]:
        """The results that are there, in order; raises what the thread died of, after its last result was taken."""
        taken: list[ResultMessage] = []
        while self._results:
            taken.append(self._results.popleft())
        if not taken and self._crash is not None:
            raise self._crash
        return taken

    def stop(self) -> None:
        """Let the work at hand end, and the thread with it; what waits is not done."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._works.get_nowait()
        self._works.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (work := self._works.get()) is not None:
                self._results.append(self._execute(work))
                self._wake()
        except BaseException as crash:  # a bug, carried to the I/O thread, which dies of it
            self._crash = crash
            self._wake()


class ExecutorService:
    """The I/O thread's loop."""

    def __init__(
        self,
        core: ExecutorCore,
        plans: Inlet[PlanMessage],
        results: Outlet[ResultMessage],
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
        compute = ComputeThread(self._core.execute, wake)
        try:
            self._results.send(self._core.opening())
            log.info("executor.opened")
            while not is_stopped():
                poller.wait(wait_s)
                self._turn(compute)
        finally:
            compute.stop()

    def _turn(self, compute: ComputeThread) -> None:
        """Results first: the scheduler waits for them, nobody waits for a plan to be decoded."""
        for result in compute.take():
            self._results.send(result)
        for message in self._plans.receive():
            if isinstance(message, SetExecutorLog):
                logs.set_level(message.level)
                continue
            work = self._core.prepare(message, time.monotonic_ns())
            if work is not None:
                compute.put(work)
        now = time.monotonic()
        self._heart.beat(now)
        if is_silent(self._plans, now, self._death_s):
            log.error("peer.silent", peer="scheduler")
            raise PeerSilent(f"the scheduler has been silent for {self._death_s} s")
