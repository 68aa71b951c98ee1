"""A reader of many streams of messages that costs the machine next to nothing, so that the server's cost shows.

One HTTP/2 connection, spoken just far enough for server streams of gRPC: windows that never close, and bytes that are
noted with the time they came and taken apart when all is over. It looks once a millisecond, so that the server does
not pay for waking it, and a message may seem to be a millisecond late. Knows no message of ours.
"""

import socket
import struct
import time
from collections.abc import Mapping, Sequence

LOOK_EVERY_S = 0.001
RECEIVE_BYTES = 1 << 20
LARGEST_WINDOW = 2**31 - 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, WINDOW_UPDATE = 0, 1, 4, 8
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE, ENABLE_PUSH = 4, 2
FRAME_HEADER, MESSAGE_HEADER = 9, 5
# Of the static table of HPACK: ":method: POST", ":scheme: http".
POST_HTTP = b"\x83\x86"

Message = tuple[float, bytes]  # when it came (time.monotonic()), and what it is


class StreamReader:
    """Streams of one method, opened one by one."""

    def __init__(self, address: str, path: str) -> None:
        host, _, port = address.rpartition(":")
        self._path = path.encode()
        self._host = address.encode()
        self._chunks: list[Message] = []
        self._num_streams = 0
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings = struct.pack(">HIHI", INITIAL_WINDOW_SIZE, LARGEST_WINDOW, ENABLE_PUSH, 0)
        update = struct.pack(">I", LARGEST_WINDOW - 65535)
        self._socket.sendall(PREFACE + _frame(SETTINGS, 0, 0, settings) + _frame(WINDOW_UPDATE, 0, 0, update))

    def open(self, requests: Sequence[bytes]) -> None:
        """Call once for each request; the first ever is stream 1, the second 3, and so on."""
        headers = POST_HTTP + b"".join(
            _literal(name, value)
            for name, value in (
                (b":path", self._path),
                (b":authority", self._host),
                (b"content-type", b"application/grpc"),
                (b"te", b"trailers"),
            )
        )
        out = b""
        for request in requests:
            stream = 2 * self._num_streams + 1
            self._num_streams += 1
            body = b"\0" + struct.pack(">I", len(request)) + request
            out += _frame(HEADERS, END_HEADERS, stream, headers) + _frame(DATA, END_STREAM, stream, body)
        self._socket.setblocking(True)
        self._socket.sendall(out)

    def read(self, seconds: float) -> None:
        """Note what comes in so long."""
        end = time.monotonic() + seconds
        self._socket.setblocking(False)
        while (now := time.monotonic()) < end:
            try:
                self._chunks.append((now, self._socket.recv(RECEIVE_BYTES)))
            except BlockingIOError:
                time.sleep(LOOK_EVERY_S)

    def close(self) -> Mapping[int, list[Message]]:
        """End every call, and hand out the messages of each stream."""
        self._socket.close()
        messages: dict[int, list[Message]] = {}
        bodies: dict[int, bytes] = {}
        for at, stream, data in _data_frames(self._chunks):
            body = bodies.get(stream, b"") + data
            while len(body) >= MESSAGE_HEADER:
                end = MESSAGE_HEADER + int.from_bytes(body[1:MESSAGE_HEADER], "big")
                if len(body) < end:
                    break
                messages.setdefault(stream, []).append((at, body[MESSAGE_HEADER:end]))
                body = body[end:]
            bodies[stream] = body
        return messages


def _data_frames(chunks: Sequence[Message]) -> list[tuple[float, int, bytes]]:
    """Of each DATA frame: when its end came, its stream and its content. RuntimeError when the server has hung up."""
    frames, rest = [], b""
    for at, chunk in chunks:
        if not chunk:
            raise RuntimeError("the server closed the connection")
        rest, start = rest + chunk, 0
        while len(rest) - start >= FRAME_HEADER:
            end = start + FRAME_HEADER + int.from_bytes(rest[start : start + 3], "big")
            if len(rest) < end:
                break
            if rest[start + 3] == DATA:
                stream = int.from_bytes(rest[start + 5 : start + FRAME_HEADER], "big")
                frames.append((at, stream, rest[start + FRAME_HEADER : end]))
            start = end
        rest = rest[start:]
    return frames


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """A header as HPACK spells it out, indexed nowhere."""
    assert len(name) < 127 and len(value) < 127
    return bytes((0, len(name))) + name + bytes((len(value),)) + value
