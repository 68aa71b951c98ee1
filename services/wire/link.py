"""The laws of a link, obeyed alike by ZeroMQ (links.py) and by the in-memory twin (memory.py).

An Outlet is a sending end with exactly one receiver; an Inlet is a receiving end with any number of senders. What one
sender sends arrives whole, in order, once. Every message is numbered by its sender; a gap is LinkBroken. Sends never
block: an outlet at its bound raises LinkFull and has sent nothing. Messages sent before the peer is there wait for
it, within the bound. A heartbeat is a numbered frame without a message: an inlet swallows it and notes the time.
"""

from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

Out = TypeVar("Out", contravariant=True)
In = TypeVar("In")


class LinkFull(Exception):
    """The outlet holds as many unsent messages as its bound allows; nothing was sent."""


class LinkBroken(Exception):
    """A message was lost, repeated or malformed: the link cannot be trusted any more."""


class Outlet(Protocol, Generic[Out]):
    """The sending end of one link."""

    def send(self, message: Out) -> None:
        """Send without blocking; raises LinkFull at the bound."""

    def heartbeat(self) -> None:
        """Tell the receiver that this end lives; does nothing at the bound."""

    def close(self) -> None:
        """Give up what is unsent and free the socket; idempotent."""


class Inlet(Protocol, Generic[In]):
    """The receiving end of one link."""

    def receive(self) -> list[In]:
        """Every message that has arrived, oldest first; an empty list when there is none. Never blocks."""

    def last_heard(self) -> Mapping[int, float]:
        """For each sender heard so far (its id): when, in time.monotonic() seconds."""

    def close(self) -> None:
        """Free the socket; idempotent."""


class AsyncInlet(Protocol, Generic[In]):
    """The receiving end of one link, for an event loop."""

    async def receive(self) -> list[In]:
        """Every message that has arrived, oldest first; waits for at least one."""

    def last_heard(self) -> Mapping[int, float]:
        """For each sender heard so far (its id): when, in time.monotonic() seconds."""

    def close(self) -> None:
        """Free the socket; idempotent."""
