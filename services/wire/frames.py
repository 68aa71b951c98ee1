"""The frame: what one message looks like between two processes, and the numbering that finds a lost one.

A frame is a 16-byte header (sender id, number: two little-endian u64) and the msgpack bytes of one message; a header
alone is a heartbeat. Numbers begin at 0 and rise by one with every frame of a sender, heartbeats included. Knows no
socket: links and memory.py carry frames, this module alone reads and writes them.
"""

import struct
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from services.wire import codec
from services.wire.link import LinkBroken

M = TypeVar("M", bound=Struct)

HEADER = struct.Struct("<QQ")


class Sealer:
    """Writes the frames of one sender. A frame that was not taken is sealed again with the same number."""

    def __init__(self, sender: int, number: int = 0) -> None:
        self.sender = sender
        self._number = number

    def seal(self, payload: bytes = b"") -> bytes:
        """The next frame of this sender."""
        return HEADER.pack(self.sender, self._number) + payload

    def advance(self) -> None:
        """The last sealed frame is on its way."""
        self._number += 1


class Opener(Generic[M]):
    """Reads the frames of every sender of one link, and holds each sender to its numbering."""

    def __init__(self, name: str, union: Any) -> None:
        self._name = name
        self._decoder = codec.decoder(union)
        self._next: dict[int, int | None] = {}  # None: forgotten
        self.last_heard: dict[int, float] = {}

    def open(self, frame: bytes, now: float) -> M | None:
        """The message of a frame; None for a heartbeat, and for whatever a forgotten sender says.

        Raises LinkBroken when the frame cannot be the next one of its sender.
        """
        if len(frame) < HEADER.size:
            raise LinkBroken(f"{self._name}: a frame of {len(frame)} bytes is no frame")
        sender, number = HEADER.unpack_from(frame)
        expected = self._next.get(sender, 0)
        if expected is None:
            return None
        if number != expected:
            raise LinkBroken(f"{self._name}: sender {sender:x} sent number {number} where {expected} was due")
        self._next[sender] = expected + 1
        self.last_heard[sender] = now
        if len(frame) == HEADER.size:
            return None
        try:
            message: M = self._decoder.decode(memoryview(frame)[HEADER.size :])
        except msgspec.DecodeError as error:
            raise LinkBroken(f"{self._name}: sender {sender:x}, number {number}: {error}") from error
        return message

    def forget(self, sender: int) -> None:
        """This sender is no more."""
        self._next[sender] = None
        self.last_heard.pop(sender, None)
