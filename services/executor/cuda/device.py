"""What a step asks of a device: a stream of work, events on it, pinned memory, graphs. One interface, two devices.

Work is put on one stream, in order, and goes on while the host does: nothing here waits but what says so. CpuDevice is
the same interface where work is done as it is put: it makes the code above run, and be tested, on any machine. The
other is CudaDevice (gpu.py).
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from services.executor.capacity import free_memory
from services.executor.cuda.tape import TapedGraph

R = TypeVar("R")


class Event(Protocol):
    """A place in the stream of work."""

    def record(self) -> None:
        """Put it after all work so far; recorded again, it moves there."""

    def is_done(self) -> bool:
        """Whether the device has passed it; True before it was ever recorded."""

    def wait(self) -> None:
        """Sleep until the device has passed it. Any thread may."""

    def ms_since(self, earlier: "Event") -> float:
        """Milliseconds of the device between two events that both have passed and were made with is_timed."""


class Graph(Protocol):
    """Work that was recorded once."""

    def replay(self) -> None:
        """Put it on the stream again: the same operations on the same memory."""


class Device(Protocol):
    """Where steps are computed. target: where its tensors live; num_processors: how many programs it runs at once."""

    target: torch.device
    num_processors: int

    def working(self) -> AbstractContextManager[object]:
        """Within it, torch puts its work on the one stream."""

    def event(self, is_timed: bool = False) -> Event:
        """A new one, not recorded."""

    def pinned(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8 on the host, which the device can reach while the host goes on."""

    def upload(self, array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> Tensor:
        """A copy on the device. Does not wait for it."""

    def capture(self, act: Callable[[], R]) -> tuple[Graph, R]:
        """Do `act` once to warm up, then record it; what it returned is where each replay puts its results.

        act: the same work on the same memory each time, nothing of it read by the host.
        """

    def synchronize(self) -> None:
        """Sleep until all work is done."""

    def free_bytes(self) -> int:
        """Memory that may still be taken."""


class CpuEvent:
    """Work is done before the host goes on, so every event has passed."""

    def __init__(self) -> None:
        self._at = 0.0

    def record(self) -> None:
        """Now."""
        self._at = time.perf_counter()

    def is_done(self) -> bool:
        """Always."""
        return True

    def wait(self) -> None:
        """Not at all."""

    def ms_since(self, earlier: Event) -> float:
        """By the host's clock."""
        assert isinstance(earlier, CpuEvent)
        return (self._at - earlier._at) * 1e3


class CpuDevice:
    """See the module docstring. Its graphs are tapes: what was baked into them, or read back, shows."""

    target = torch.device("cpu")
    num_processors = 4

    def working(self) -> AbstractContextManager[object]:
        """There is one stream of work: the thread."""
        return nullcontext()

    def event(self, is_timed: bool = False) -> Event:
        """One that has passed."""
        return CpuEvent()

    def pinned(self, num_bytes: int) -> Tensor:
        """Plain memory."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def upload(self, array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> Tensor:
        """A copy."""
        return torch.from_numpy(array.copy())

    def capture(self, act: Callable[[], R]) -> tuple[Graph, R]:
        """A tape of the second time."""
        act()
        return TapedGraph.record(act)

    def synchronize(self) -> None:
        """Nothing is under way."""

    def free_bytes(self) -> int:
        """As the machine says."""
        return free_memory()
