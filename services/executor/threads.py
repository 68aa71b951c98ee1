"""A thread that does one kind of work, in order; it neither spins nor waits for anybody.

What a thread died of waits to be asked for: a bug is loud in the I/O thread. The works that may wait are bounded; who
puts more is broken.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

L = TypeVar("L")
W = TypeVar("W")
Taken = TypeVar("Taken", contravariant=True)


class TooMuchWork(Exception):
    """More works are waiting than any scheduler may have unanswered."""


class Stage(Protocol[Taken]):
    """Whatever takes works and does them."""

    def put(self, work: Taken) -> None:
        """Queue one work; raises TooMuchWork at the bound."""

    def check(self) -> None:
        """Raise what a thread died of, if one did."""

    def stop(self) -> None:
        """Let the works at hand end; what waits is not done."""


class WorkThread(Generic[W]):
    """Runs `do` for one work after the other; calls `on_crash` once should that raise."""

    def __init__(self, name: str, do: Callable[[W], None], on_crash: Callable[[], None], max_waiting: int) -> None:
        self._do = do
        self._on_crash = on_crash
        self._max_waiting = max_waiting
        self._works: queue.SimpleQueue[W | None] = queue.SimpleQueue()
        self._crash: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, work: W) -> None:
        """Queue one work; raises TooMuchWork at the bound."""
        if self._works.qsize() >= self._max_waiting:
            raise TooMuchWork(f"{self._thread.name}: {self._max_waiting} works are waiting already")
        self._works.put(work)

    def check(self) -> None:
        """Raise what the thread died of, if it did."""
        if self._crash is not None:
            raise self._crash

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
                self._do(work)
        except BaseException as crash:  # a bug, carried to the I/O thread, which dies of it
            self._crash = crash
            self._on_crash()


class TwoThreads(Generic[W, L]):
    """One thread launches works, the next waits for them: a work is launched while those before it are waited for.

    max_waiting: works that may wait to be launched, and launched ones that may wait to be waited for. The second bound
    is never met where whoever puts works in waits for some of their results. A step that the waiter still holds when
    the other dies is lost: its tokens were told to nobody, and are computed anew.
    """

    def __init__(
        self, launch: Callable[[W], L], finish: Callable[[L], None], on_crash: Callable[[], None], max_waiting: int
    ) -> None:
        self._finishing: WorkThread[L] = WorkThread("waiter", finish, on_crash, max_waiting)

        def launch_on(work: W) -> None:
            self._finishing.put(launch(work))

        self._launching: WorkThread[W] = WorkThread("compute", launch_on, on_crash, max_waiting)

    def put(self, work: W) -> None:
        """Queue one work; raises TooMuchWork at the bound."""
        self._launching.put(work)

    def check(self) -> None:
        """Raise what either thread died of, the waiter first: its steps came before."""
        self._finishing.check()
        self._launching.check()

    def stop(self) -> None:
        """Let the works at hand end; what waits is not done."""
        self._launching.stop()
        self._finishing.stop()
