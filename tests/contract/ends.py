"""Both ends of one link in each of the worlds that must obey the same laws: ZeroMQ over ipc, over tcp, and memory."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Protocol

from services.wire.frames import Sealer
from services.wire.link import Inlet, Outlet, RenewableOutlet
from services.wire.links import (
    Poller,
    ZmqInlet,
    new_keys,
    open_inlet,
    open_outlet,
    open_renewable_outlet,
    secure,
)
from services.wire.memory import memory_link
from services.wire.messages import FeedbackMessage
from services.wire.topology import FEEDBACK
from tests.ports import free_port

PATIENCE_S = 20.0
WORLDS = ("zmq-ipc", "zmq-tcp", "memory")


class Ends(Protocol):
    """One link, whose ends a test opens as it likes. The link is FEEDBACK; Credit counts, StopHit names."""

    def outlet(self, high_water_mark: int = 4096, sealer: Sealer | None = None) -> Outlet[FeedbackMessage]:
        """One more sending end."""

    def renewable(self) -> RenewableOutlet[FeedbackMessage]:
        """A sending end that may be renewed."""

    def inlet(self) -> Inlet[FeedbackMessage]:
        """The receiving end; asked for once."""

    def successor(self) -> Inlet[FeedbackMessage]:
        """The receiving process dies, another takes its place; its receiving end."""

    def wait(self) -> None:
        """Wait until the inlet may hold something more."""


class ZmqEnds:
    def __init__(self, address: str, stack: ExitStack) -> None:
        self._address = address
        self._stack = stack
        self._inlet: ZmqInlet[FeedbackMessage] | None = None
        self._poller: Poller | None = None

    def outlet(self, high_water_mark: int = 4096, sealer: Sealer | None = None) -> Outlet[FeedbackMessage]:
        return self._stack.enter_context(closing(open_outlet(FEEDBACK, self._address, high_water_mark, sealer)))

    def renewable(self) -> RenewableOutlet[FeedbackMessage]:
        return self._stack.enter_context(closing(open_renewable_outlet(FEEDBACK, self._address, 4096)))

    def inlet(self) -> ZmqInlet[FeedbackMessage]:
        self._inlet = self._stack.enter_context(closing(open_inlet(FEEDBACK, self._address)))
        self._poller = self._stack.enter_context(closing(Poller(self._inlet)))
        return self._inlet

    def successor(self) -> ZmqInlet[FeedbackMessage]:
        assert self._inlet is not None
        self._inlet.close()
        while True:
            try:
                return self.inlet()
            except OSError:  # a socket is freed a moment after it was closed
                time.sleep(0.01)

    def wait(self) -> None:
        assert self._poller is not None
        self._poller.wait(0.1)


class MemoryEnds:
    def __init__(self) -> None:
        self._inlet = memory_link(FEEDBACK, 4096)[1]

    def outlet(self, high_water_mark: int = 4096, sealer: Sealer | None = None) -> Outlet[FeedbackMessage]:
        return self._inlet.outlet(sealer, high_water_mark)

    def renewable(self) -> RenewableOutlet[FeedbackMessage]:
        return self._inlet.outlet()

    def inlet(self) -> Inlet[FeedbackMessage]:
        return self._inlet

    def successor(self) -> Inlet[FeedbackMessage]:
        self._inlet = self._inlet.successor()
        return self._inlet

    def wait(self) -> None:
        """What was sent has arrived."""


@contextmanager
def open_ends(world: str, folder: Path) -> Iterator[Ends]:
    """The ends of a link in one world; all that was opened is closed at the end."""
    with ExitStack() as stack:
        if world == "memory":
            yield MemoryEnds()
        elif world == "zmq-ipc":
            yield ZmqEnds(f"ipc://{folder}/feedback", stack)
        else:
            # As in the product: over tcp links have keys.
            secure(new_keys())
            stack.callback(secure, None)
            yield ZmqEnds(f"tcp://127.0.0.1:{free_port()}", stack)


def collect(ends: Ends, inlet: Inlet[FeedbackMessage], count: int) -> list[FeedbackMessage]:
    """Receive until `count` messages are here; fails when they do not come."""
    received: list[FeedbackMessage] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(received) < count:
        assert time.monotonic() < deadline, f"{len(received)} of {count} messages came"
        ends.wait()
        received += inlet.receive()
    return received
