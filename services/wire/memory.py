"""Links within one process: the twin of links, under the same laws and through the same bytes.

For driving services by hand, without sockets, threads or sleeps, and for embedding. Messages pass through the codec,
so a message that could not cross a process does not cross here either. The clock is an argument. The process that
takes a dead receiver's place is the inlet's successor.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Generic, TypeVar

from msgspec import Struct

from services.wire import codec
from services.wire.frames import Opener, Sealer
from services.wire.link import LinkFull
from services.wire.topology import Link

M = TypeVar("M", bound=Struct)


class MemoryOutlet(Generic[M]):
    """The sending end, renewable; its bound counts what it sent and the inlet has not taken."""

    def __init__(self, inlet: "MemoryInlet[M]", high_water_mark: int, sealer: Sealer) -> None:
        self._inlet = inlet
        self._high_water_mark = high_water_mark
        self._sealer = sealer
        self._is_open = True
        # Two counters with one writer each, so that sender and receiver may be two threads.
        self._num_sent = 0
        self._num_taken = 0

    def send(self, message: M) -> None:
        """Send without blocking; raises LinkFull at the bound."""
        if not self._push(codec.encode(message)):
            raise LinkFull(self._inlet.name)

    def heartbeat(self) -> None:
        """Tell the receiver that this end lives; does nothing at the bound, or when closed."""
        if self._is_open:
            self._push(b"")

    def close(self) -> None:
        """Send nothing more; what was sent stays readable. Idempotent."""
        self._is_open = False

    def renew(self) -> None:
        """Give up what is unsent and begin anew, from number 0, with the receiver that is there now; on its thread."""
        self._inlet.drop(self)
        self._inlet = self._inlet.latest
        self._sealer = self._inlet.new_sealer()
        self._is_open = True
        self._num_sent = self._num_taken = 0

    def taken(self) -> None:
        """Called by the inlet for each frame it takes."""
        self._num_taken += 1

    def _push(self, payload: bytes) -> bool:
        assert self._is_open, f"{self._inlet.name}: send after close"
        if not self._inlet.is_open or self._num_sent - self._num_taken >= self._high_water_mark:
            return False
        self._inlet.put(self, self._sealer.seal(payload))
        self._sealer.advance()
        self._num_sent += 1
        return True


class MemoryInlet(Generic[M]):
    """The receiving end of any number of outlets."""

    def __init__(self, link: Link[M], high_water_mark: int, clock: Callable[[], float]) -> None:
        self.name = link.name
        self.is_open = True
        self._link = link
        self._high_water_mark = high_water_mark
        self._clock = clock
        self._successor: MemoryInlet[M] | None = None
        self._opener: Opener[M] = Opener(link.name, link.union)
        self._frames: deque[tuple[MemoryOutlet[M], bytes]] = deque()
        self._sender_ids = count(1)
        self._on_arrival: Callable[[], object] = lambda: None

    def outlet(self, sealer: Sealer | None = None, high_water_mark: int | None = None) -> MemoryOutlet[M]:
        """One more sender, with a bound of its own: the link's, when none is given."""
        return MemoryOutlet(self, high_water_mark or self._high_water_mark, sealer or self.new_sealer())

    def successor(self) -> "MemoryInlet[M]":
        """Close this one; the receiver that takes its place, for outlets that are renewed from now on."""
        self.close()
        self._successor = MemoryInlet(self._link, self._high_water_mark, self._clock)
        self._successor._sender_ids = self._sender_ids
        return self._successor

    @property
    def latest(self) -> "MemoryInlet[M]":
        """The last of its successors, or itself."""
        return self._successor.latest if self._successor else self

    def new_sealer(self) -> Sealer:
        """For one more sender."""
        return Sealer(next(self._sender_ids))

    def receive(self) -> list[M]:
        """Every message that has arrived, oldest first. Never blocks."""
        messages = []
        now = self._clock()
        while self._frames:
            outlet, frame = self._frames.popleft()
            outlet.taken()
            message = self._opener.open(frame, now)
            if message is not None:
                messages.append(message)
        return messages

    def last_heard(self) -> Mapping[int, float]:
        """For each sender heard so far (its id): when, by the clock of this link."""
        return self._opener.last_heard

    def forget(self, sender: int) -> None:
        """This sender is no more: it was never heard, and what it may still send is dropped unread."""
        self._opener.forget(sender)

    def close(self) -> None:
        """Drop what was not received, and take nothing more; idempotent."""
        self.is_open = False
        self._frames.clear()

    def put(self, outlet: MemoryOutlet[M], frame: bytes) -> None:
        """Called by an outlet for each frame it sends."""
        self._frames.append((outlet, frame))
        self._on_arrival()

    def drop(self, outlet: MemoryOutlet[M]) -> None:
        """Called by an outlet that gives up what it sent."""
        self._frames = deque(frame for frame in self._frames if frame[0] is not outlet)

    def on_arrival(self, callback: Callable[[], object]) -> None:
        """Call back, on the sender's thread, whenever a frame has arrived."""
        self._on_arrival = callback


class MemoryAsyncInlet(Generic[M]):
    """A memory inlet for an event loop; see link.AsyncInlet. Its senders run on the same loop."""

    def __init__(self, inlet: MemoryInlet[M]) -> None:
        self._inlet = inlet
        self._arrived = asyncio.Event()
        inlet.on_arrival(self._arrived.set)

    async def receive(self) -> list[M]:
        """Every message that has arrived, oldest first; waits for at least one."""
        while not (messages := self._inlet.receive()):
            self._arrived.clear()
            await self._arrived.wait()
        return messages

    def last_heard(self) -> Mapping[int, float]:
        """For each sender heard so far (its id): when, by the clock of the link."""
        return self._inlet.last_heard()

    def close(self) -> None:
        """Drop what was not received; idempotent."""
        self._inlet.close()


def memory_link(
    link: Link[M], high_water_mark: int, clock: Callable[[], float] = time.monotonic
) -> tuple[MemoryOutlet[M], MemoryInlet[M]]:
    """Both ends of a link; further senders come from `inlet.outlet()`."""
    inlet: MemoryInlet[M] = MemoryInlet(link, high_water_mark, clock)
    return inlet.outlet(), inlet
