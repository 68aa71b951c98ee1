"""The way to one gateway: what its outlet takes goes at once, the rest waits in order, and credit tells how far it is.

A gateway that does not read must hold up nobody else, so nothing here waits. Invariants: batches leave in the order of
their numbers; credit never falls, and never covers a batch that the outlet has not taken.
"""

from collections import deque

from services.wire.link import LinkFull, Outlet
from services.wire.messages import TextBatch, TextMessage

NOTHING = -1  # the credit of a lane that never had any


class PendingExceeded(Exception):
    """More is pending than the scheduler may have uncredited: it ignores the credit withheld from it."""


class Lane:
    """One gateway's outlet and what it has not taken. `credited`: the number last told to the scheduler."""

    def __init__(self, gateway: str, outlet: Outlet[TextMessage], max_pending: int) -> None:
        self.credited = NOTHING
        self._gateway = gateway
        self._outlet = outlet
        self._max_pending = max_pending
        self._pending: deque[TextBatch] = deque()

    @property
    def is_empty(self) -> bool:
        return not self._pending

    def put(self, batch: TextBatch) -> None:
        """Send in turn, or keep; raises PendingExceeded at the bound."""
        self._pending.append(batch)
        self.send()
        if len(self._pending) > self._max_pending:
            raise PendingExceeded(f"{len(self._pending)} TextBatches are pending for {self._gateway}")

    def send(self) -> None:
        """Give the outlet as much as it takes."""
        while self._pending:
            try:
                self._outlet.send(self._pending[0])
            except LinkFull:
                return
            self._pending.popleft()

    def covered(self, last_number: int) -> int:
        """Up to which TokenBatch everything for this gateway was taken; last_number: the newest one read."""
        return self._pending[0].number - 1 if self._pending else last_number
