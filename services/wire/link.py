"""The laws of a link, obeyed alike by ZeroMQ (links) and by the in-memory twin (memory.py).

An Outlet is a sending end with exactly one receiver; an Inlet is a receiving end with any number of senders. What one
sender sends arrives whole, in order, once. Every message is numbered by its sender; a gap is LinkBroken. Sends never
block: an outlet at its bound raises LinkFull and has sent nothing. Messages sent before the peer is there wait for
it, within the bound. A heartbeat is a numbered frame without a message: an inlet swallows it and notes the time.

Where a receiver may die and another take its place, the outlet is renewable: it belongs to one life of its receiver,
and nothing that was meant for one ever reaches the next. Where a sender may, the inlet is told to forget it.
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


class RenewableOutlet(Outlet[Out], Protocol, Generic[Out]):
    """The sending end of a link whose receiver may be replaced; to be renewed before its first message.

    Once the receiver is gone, the outlet is at its bound. It may be renewed after it was closed; in between its
    heartbeats do nothing.
    """

    def renew(self) -> None:
        """Give up what is unsent and begin anew, from number 0, with the receiver that is there now."""


class Inlet(Protocol, Generic[In]):
    """The receiving end of one link."""

    def receive(self) -> list[In]:
        """Every message that has arrived, oldest first; an empty list when there is none. Never blocks."""

    def last_heard(self) -> Mapping[int, float]:
        """For each sender heard so far (its id): when, in time.monotonic() seconds."""

    def forget(self, sender: int) -> None:
        """This sender is no more: it was never heard, and what it may still send is dropped unread."""

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
