"""A thread that does one kind of work, in order, for the I/O thread; it neither spins nor waits for anybody.

What becomes of a work waits to be taken, and so does what the thread died of: a bug is loud in the I/O thread. The
works that may wait are bounded; who sends more is broken.
"""

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

W = TypeVar("W")
R = TypeVar("R")


class TooMuchWork(Exception):
    """More works are waiting than any scheduler may have unanswered."""


class WorkThread(Generic[W, R]):
    """Runs `execute` for one work after the other, and `wake` after each."""

    def __init__(self, name: str, execute: Callable[[W], R], wake: Callable[[], None], max_waiting: int) -> None:
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
                self._results.append(self._execute(work))
                self._wake()
        except BaseException as crash:  # a bug, carried to the I/O thread, which dies of it
            self._crash = crash
            self._wake()
