"""An outlet that several threads of a process may use: whoever has a message sends it, and no thread is woken for it.

The laws of link.py hold for all of them together: what one thread has sent before another comes first.
"""

import threading
from typing import Generic, TypeVar

from services.wire.link import Outlet

M = TypeVar("M")


class SharedOutlet(Generic[M]):
    """The sending end of one link, one thread at a time. A socket may change threads behind a lock, and only so."""

    def __init__(self, outlet: Outlet[M]) -> None:
        self._outlet = outlet
        self._lock = threading.Lock()

    def send(self, message: M) -> None:
        """Send without blocking; raises LinkFull at the bound."""
        with self._lock:
            self._outlet.send(message)

    def heartbeat(self) -> None:
        """Tell the receiver that this end lives; does nothing at the bound."""
        with self._lock:
            self._outlet.heartbeat()

    def close(self) -> None:
        """Give up what is unsent and free the socket; idempotent."""
        with self._lock:
            self._outlet.close()
