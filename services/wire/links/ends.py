"""Outlets, inlets and pollers over ZeroMQ (PUSH to PULL).

The receiver binds, the sender connects; what is sent before the receiver is there waits in the outlet. One message is
one frame (frames.py). Inlets, outlets and pollers belong to the thread that uses them; only Waker.wake may be called
from another. Invariants: link.py. A PUSH socket with one connection blocks (here: raises LinkFull) at its bound where
PUB or ROUTER would drop without a word.
"""

import asyncio
import contextlib
import math
import secrets
import socket
import time
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import structlog
import zmq
from msgspec import Struct

from services.wire import codec
from services.wire.frames import Opener, Sealer
from services.wire.link import LinkFull
from services.wire.links import sockets
from services.wire.topology import Link

M = TypeVar("M", bound=Struct)

# Frames the receiving side takes off the wire before it is asked for them; beyond it the sender's bound fills.
RECEIVE_BOUND = 1024
# A sender that waits for its receiver to bind asks again after so long.
RECONNECT_MS = 10
NEVER = -1
# How often an inlet tells of connections that were refused or lost.
TELL_EVERY_S = 1.0

log = structlog.get_logger()


class ZmqOutlet(Generic[M]):
    """The sending end of a link; see link.Outlet."""

    def __init__(self, name: str, pusher: "zmq.Socket[bytes]", sealer: Sealer) -> None:
        self._name = name
        self._socket = pusher
        self._sealer = sealer

    def send(self, message: M) -> None:
        """Send without blocking; raises LinkFull at the bound."""
        if not self._push(codec.encode(message)):
            raise LinkFull(self._name)

    def heartbeat(self) -> None:
        """Tell the receiver that this end lives; does nothing at the bound."""
        self._push(b"")

    def close(self) -> None:
        """Give up what is unsent and free the socket; idempotent. To send the rest first, call `finish`."""
        sockets.release(self._socket)

    def _push(self, payload: bytes) -> bool:
        frame = self._sealer.seal(payload)
        # A send may overlook for a millisecond that the wire has taken something; asking for the events looks anew.
        is_taken = self._try(frame) or (bool(int(self._socket.get(zmq.EVENTS)) & zmq.POLLOUT) and self._try(frame))
        if is_taken:
            self._sealer.advance()
        return is_taken

    def _try(self, frame: bytes) -> bool:
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True


class ZmqRenewableOutlet(ZmqOutlet[M]):
    """The sending end of a link whose receiver may be replaced; see link.RenewableOutlet.

    Its socket connects once. One that connected again would hand the next receiver what the last one did not take.
    """

    def __init__(self, name: str, address: str, high_water_mark: int) -> None:
        self._address = address
        self._high_water_mark = high_water_mark
        super().__init__(name, sockets.pusher(address, high_water_mark, NEVER), _new_sealer())

    def renew(self) -> None:
        """Give up what is unsent and begin anew, from number 0, with the receiver that is there now."""
        self.close()
        self._socket = sockets.pusher(self._address, self._high_water_mark, NEVER)
        sockets.connect(self._socket, self._address)
        self._sealer = _new_sealer()

    def heartbeat(self) -> None:
        """Tell the receiver that this end lives; does nothing at the bound, or when closed."""
        if not self._socket.closed:
            super().heartbeat()


class ZmqInlet(Generic[M]):
    """The receiving end of a link; see link.Inlet. `socket` is for the pollers of this module alone."""

    def __init__(self, name: str, puller: "zmq.Socket[bytes]", opener: Opener[M]) -> None:
        self.socket = puller
        self._opener = opener
        self._name = name
        self._events = sockets.events(puller)
        self._due = 0.0

    def receive(self) -> list[M]:
        """Every message that has arrived, oldest first, a bounded number at a time. Never blocks."""
        messages = []
        now = time.monotonic()
        if now >= self._due:
            self._due = now + TELL_EVERY_S
            self._tell_of_connections()
        for _ in range(RECEIVE_BOUND):
            try:
                frame = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            message = self._opener.open(frame, now)
            if message is not None:
                messages.append(message)
        return messages

    def last_heard(self) -> Mapping[int, float]:
        """For each sender heard so far (its id): when, in time.monotonic() seconds."""
        return self._opener.last_heard

    def forget(self, sender: int) -> None:
        """This sender is no more: it was never heard, and what it may still send is dropped unread."""
        self._opener.forget(sender)

    def close(self) -> None:
        """Free the socket; idempotent."""
        sockets.close(self.socket, self._events)

    def _tell_of_connections(self) -> None:
        num_lost, num_refused = sockets.lost(self._events)
        if num_lost or num_refused:
            log.warning("link.disconnected", link=self._name, num=num_lost, num_refused=num_refused)


class ZmqAsyncInlet(Generic[M]):
    """An inlet for an event loop (asyncio's own or uvloop); see link.AsyncInlet."""

    def __init__(self, inlet: ZmqInlet[M]) -> None:
        self._inlet = inlet
        self._fd = int(inlet.socket.getsockopt(zmq.FD))

    async def receive(self) -> list[M]:
        """Every message that has arrived, oldest first; waits for at least one."""
        while not (messages := self._inlet.receive()):
            await self._readable()
        return messages

    def last_heard(self) -> Mapping[int, float]:
        """For each sender heard so far (its id): when, in time.monotonic() seconds."""
        return self._inlet.last_heard()

    def close(self) -> None:
        """Free the socket; idempotent. Nobody may be waiting in `receive`."""
        self._inlet.close()

    async def _readable(self) -> None:
        # zmq's descriptor is readable while zmq has news of any kind and quiet once a receive has found nothing, so
        # it is watched from then on only: a watch left standing would spin while nobody receives.
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()
        loop.add_reader(self._fd, _resolve, arrived)
        try:
            await arrived
        finally:
            loop.remove_reader(self._fd)


class Waker:
    """Ends a Poller's wait from any thread, or from a signal handler."""

    def __init__(self, sender: socket.socket) -> None:
        self._sender = sender

    def wake(self) -> None:
        """The wait going on, or else the next one, returns at once. Harmless after the poller was closed."""
        # A full buffer means that a wake is already pending; a closed one that nobody waits any more.
        with contextlib.suppress(OSError):
            self._sender.send(b"\0")


class Poller:
    """Waits until one of several inlets may hold something. Spends no processor time while it waits."""

    def __init__(self, *inlets: ZmqInlet[Any]) -> None:
        self._wakes, sender = socket.socketpair()
        self._wakes.setblocking(False)
        sender.setblocking(False)
        self._sender = sender
        self._poller = zmq.Poller()
        self._poller.register(self._wakes, zmq.POLLIN)
        for inlet in inlets:
            self._poller.register(inlet.socket, zmq.POLLIN)

    def wait(self, timeout_s: float) -> None:
        """Return when an inlet may hold something, when a waker fired, or after timeout_s."""
        # Rounded up: a wait of less than a millisecond must not become a busy loop.
        for source, _ in self._poller.poll(math.ceil(timeout_s * 1000)):
            if source == self._wakes.fileno():
                with contextlib.suppress(BlockingIOError):
                    self._wakes.recv(4096)

    def waker(self) -> Waker:
        """What another thread needs to end the wait."""
        return Waker(self._sender)

    def close(self) -> None:
        """Free the wakers' sockets; idempotent. The inlets stay open."""
        self._wakes.close()
        self._sender.close()


def open_inlet(link: Link[M], address: str) -> ZmqInlet[M]:
    """Bind a link's receiving end; a socket file left by a dead process is replaced. Raises OSError with the reason."""
    puller = sockets.puller(address, RECEIVE_BOUND)
    try:
        puller.bind(address)
    except zmq.ZMQError as error:
        puller.close(linger=0)
        raise OSError(error.errno, f"{link.name}: cannot bind {address}: {error.strerror}") from error
    return ZmqInlet(link.name, puller, Opener(link.name, link.union))


def open_async_inlet(link: Link[M], address: str) -> ZmqAsyncInlet[M]:
    """Bind a link's receiving end for an event loop. Raises OSError with the reason."""
    return ZmqAsyncInlet(open_inlet(link, address))


def open_outlet(link: Link[M], address: str, high_water_mark: int, sealer: Sealer | None = None) -> ZmqOutlet[M]:
    """Connect a link's sending end, which holds at most high_water_mark unsent messages."""
    pusher = sockets.pusher(address, high_water_mark, RECONNECT_MS)
    sockets.connect(pusher, address)
    return ZmqOutlet(link.name, pusher, sealer or _new_sealer())


def open_renewable_outlet(link: Link[M], address: str, high_water_mark: int) -> ZmqRenewableOutlet[M]:
    """The sending end of a link whose receiver may be replaced. It is connected when it is renewed."""
    return ZmqRenewableOutlet(link.name, address, high_water_mark)


def _new_sealer() -> Sealer:
    return Sealer(secrets.randbits(64))


def _resolve(arrived: "asyncio.Future[None]") -> None:
    if not arrived.done():
        arrived.set_result(None)
