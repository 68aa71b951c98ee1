"""Bytes that no decent peer sends, for every listener of a server."""

import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PATIENCE_S = 0.02


@dataclass(frozen=True)
class Listener:
    """Something that listens: an address as gRPC and zmq write it."""

    name: str
    address: str

    def connect(self) -> socket.socket:
        """A connection of bare bytes."""
        path = self.address.removeprefix("unix:").removeprefix("ipc://")
        if path != self.address:
            stranger = socket.socket(socket.AF_UNIX)
            stranger.connect(path)
            return stranger
        host, _, port = self.address.removeprefix("tcp://").rpartition(":")
        return socket.create_connection((host, int(port)), timeout=10)


def frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    """One frame of HTTP/2, with a length that may be a lie."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def payloads(seed: int) -> Iterator[tuple[str, bytes]]:
    """What to send, by name: noise, other protocols, and this one spoken wrongly."""
    noise = random.Random(seed).randbytes(10_000)
    yield "noise", noise
    yield "nothing", b""
    yield "zeros", bytes(10_000)
    yield "http", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield "tls hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise[:512]
    yield "preface and noise", PREFACE + noise
    yield "preface and an endless frame", PREFACE + frame(0, 0, 1, noise, 2**24 - 1)
    yield "data before headers", PREFACE + frame(4, 0, 0, b"") + frame(0, 1, 1, noise[:100])
    yield "headers of noise", PREFACE + frame(4, 0, 0, b"") + frame(1, 5, 1, noise[:1000])
    yield "window of nothing", PREFACE + frame(4, 0, 0, b"") + frame(8, 0, 0, bytes(4))
    yield "settings on a stream", PREFACE + frame(4, 0, 3, noise[:6])
    yield "zmtp 1", b"\x01\x00\x05\x00hello\x7f\x00" + noise[:127]
    yield "zmtp 3 and noise", b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + bytes(32) + noise


def attack(listener: Listener, payload: bytes) -> None:
    """Send it and hang up; the listener may hang up first."""
    with listener.connect() as stranger, contextlib.suppress(OSError):
        stranger.settimeout(PATIENCE_S)
        stranger.sendall(payload)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and stranger.recv(65536):
            pass
