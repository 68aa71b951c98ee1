"""A thread that does one kind of work, in order, for the I/O thread; it neither spins nor waits for anybody.

What becomes of a work waits to be taken, and so does what the thread died of: a bug is loud in the I/O thread. The
works that may wait are bounded; who sends more is broken.
"""

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

L = TypeVar("L")
W = TypeVar("W")
R = TypeVar("R")
Taken = TypeVar("Taken", contravariant=True)


class TooMuchWork(Exception):
    """More works are waiting than any scheduler may have unanswered."""


class Stage(Protocol[Taken, R]):
    """Whatever takes works and gives back what became of them."""

    def put(self, work: Taken) -> None:
        """Queue one work; raises TooMuchWork at the bound."""

    def take(self) -> list[R]:
        """The results that are there, in order; raises what a thread died of, after its last result was taken."""

    def stop(self) -> None:
        """Let the works at hand end; what waits is not done."""


class WorkThread(Generic[W, R]):
    """Runs `execute` for one work after the other, and `wake` after each whose result is something, not None."""

    def __init__(self, name: str, execute: Callable[[W], R | None], wake: Callable[[], None], max_waiting: int) -> None:
        self._execute = execute
        self._wake = wake
        self._max_waiting = max_waiting
        self._works: queue.SimpleQueue[W | None] = queue.SimpleQueue()
        self._results: deque[R] = deque()
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, work: W) -> None:
        """Queue one work; raises TooMuchWork at the bound."""
        if self._works.qsize() >= self._max_waiting:
            raise TooMuchWork(f"{self._thread.name}: {self._max_waiting} works are waiting already")
        self._works.put(work)

    def take(self) -> list[R]:
        """The results that are there, in order; raises what the thread died of, after its last result was taken."""
        taken: list[R] = []
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
                result = self._execute(work)
                if result is not None:
                    self._results.append(result)
                    self._wake()
        except BaseException as crash:  # a bug, carried to the I/O thread, which dies of it
            self._crash = crash
            self._wake()


class TwoThreads(Generic[W, L, R]):
    """One thread launches works, the next waits for them: a work is launched while those before it are waited for.

    max_waiting: works that may wait to be launched, and launched ones that may wait to be waited for. The second bound
    is never met where whoever puts works in waits for some of their results.
    """

    def __init__(
        self, launch: Callable[[W], L], finish: Callable[[L], R], wake: Callable[[], None], max_waiting: int
    ) -> None:
        self._finishing: WorkThread[L, R] = WorkThread("waiter", finish, wake, max_waiting)

        def launch_on(work: W) -> None:
            self._finishing.put(launch(work))

        self._launching: WorkThread[W, None] = WorkThread("compute", launch_on, wake, max_waiting)

    def put(self, work: W) -> None:
        """Queue one work; raises TooMuchWork at the bound."""
        self._launching.put(work)

    def take(self) -> list[R]:
        """The results that are there, in order; where there is none, raises what either thread died of.

        A step that the waiter still holds is lost then: its tokens were told to nobody, and are computed anew.
        """
        taken = self._finishing.take()
        if not taken:
            self._launching.take()
        return taken

    def stop(self) -> None:
        """Let the works at hand end; what waits is not done."""
        self._launching.stop()
        self._finishing.stop()
