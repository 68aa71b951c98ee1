"""A ring of slots that steps in flight use: each is one step's until the device is done with it and it was read.

A slot that comes back before its event has passed would be written over while the device reads it: an error, always.
Whoever finds no free slot waits for one, which a scheduler that keeps to three steps in flight never brings about.
"""

import queue
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from services.executor.cuda.device import Event

MOST_IN_FLIGHT = 3  # the deepest that a scheduler goes
RING_SIZE = MOST_IN_FLIGHT + 1  # one more is being filled
PATIENCE_S = 60.0


class Fenced(Protocol):
    """done: passed once the device no longer touches the slot."""

    @property
    def done(self) -> Event: ...


S = TypeVar("S", bound=Fenced)


class Ring(Generic[S]):
    """Slots go out in the order in which they came back."""

    def __init__(self, slots: Iterable[S], patience_s: float = PATIENCE_S) -> None:
        self._free: queue.SimpleQueue[S] = queue.SimpleQueue()
        self._patience_s = patience_s
        for slot in slots:
            self._free.put(slot)

    def take(self) -> S:
        """The next free slot; raises RuntimeError when none comes back for patience_s."""
        try:
            return self._free.get(timeout=self._patience_s)
        except queue.Empty:
            raise RuntimeError(f"no step's result was taken for {self._patience_s} s") from None

    def give_back(self, slot: S) -> None:
        """Raises RuntimeError when the device may still touch it."""
        if not slot.done.is_done():
            raise RuntimeError("a slot was given back before the device was done with it")
        self._free.put(slot)
