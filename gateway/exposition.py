"""/metrics over HTTP, for Prometheus: on the gateway's own loop, without a thread and without a web framework.

Beside it /livez and /readyz, for probes that speak no gRPC, or none with TLS. A family at a time is rendered, and
streams go on in between, so that a scrape holds up no token. Knows no metric. Invariants: at most MAX_CONNECTIONS at
once and MAX_HEAD_BYTES of a request are read, within HEAD_S; every connection is closed after its answer.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable

import structlog
from prometheus_client import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

log = structlog.get_logger()

MAX_CONNECTIONS = 16
MAX_HEAD_BYTES = 8192
HEAD_S = 5.0
OK, UNAVAILABLE = "200 OK", "503 Service Unavailable"
END_OF_HEAD = b"\r\n\r\n"


class Exposition:
    """One listener. families: everything there is to tell, asked for at each scrape; is_ready: what /readyz says."""

    def __init__(self, families: Callable[[], Iterable[Family]], is_ready: Callable[[], bool]) -> None:
        self._families = families
        self._is_ready = is_ready
        self._server: asyncio.Server | None = None
        self._num_open = 0

    async def start(self, listen: str) -> str:
        """Take host:port; the address that was bound. Raises OSError when it is taken."""
        host, _, port = listen.rpartition(":")
        host = host.strip("[]")
        self._server = await asyncio.start_server(self._answer, host, int(port), limit=MAX_HEAD_BYTES)
        bound = self._server.sockets[0].getsockname()[1]
        address = f"{listen.rpartition(':')[0]}:{bound}"
        log.info("metrics.listening", address=address)
        return address

    async def stop(self) -> None:
        """Close it."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._num_open += 1
        try:
            with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(HEAD_S):
                    await self._serve(reader, writer)
        finally:
            self._num_open -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._num_open > MAX_CONNECTIONS:
            await reader.read(MAX_HEAD_BYTES)  # closed with words unread, the connection would be reset over the answer
            return _write(writer, UNAVAILABLE, b"too many connections\n")
        try:
            head = await reader.readuntil(END_OF_HEAD)
        except asyncio.LimitOverrunError:
            return _write(writer, "431 Request Header Fields Too Large", b"")
        method, _, rest = head.partition(b" ")
        path, _, version = rest.partition(b"\r\n")[0].partition(b" ")
        if not version.startswith(b"HTTP/1."):
            return _write(writer, "400 Bad Request", b"")
        if method != b"GET":
            return _write(writer, "405 Method Not Allowed", b"")
        match path.partition(b"?")[0]:
            case b"/metrics":
                await self._tell_metrics(writer)
            case b"/livez":
                _write(writer, OK, b"alive\n")
            case b"/readyz":
                _write(writer, *((OK, b"ready\n") if self._is_ready() else (UNAVAILABLE, b"not ready\n")))
            case _:
                _write(writer, "404 Not Found", b"there are /metrics, /livez and /readyz\n")

    async def _tell_metrics(self, writer: asyncio.StreamWriter) -> None:
        body = bytearray()
        for family in self._families():
            body += rendered(family)
            await asyncio.sleep(0)
        _write(writer, OK, bytes(body), CONTENT_TYPE_PLAIN_0_0_4)
        await writer.drain()


def rendered(family: Family) -> bytes:
    """The text format of one family."""
    return generate_latest(_One(family))


class _One(Collector):
    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterable[Family]:
        return [self._family]


def _write(writer: asyncio.StreamWriter, status: str, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
