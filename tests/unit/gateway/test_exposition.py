"""/metrics as a scraper finds it, and what it does with everybody else."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator

import msgspec
import pytest
import pytest_asyncio
from prometheus_client import Metric as Family
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from gateway import exposition
from gateway.engine import Phase
from gateway.exposition import MAX_CONNECTIONS, MAX_HEAD_BYTES, Exposition
from gateway.metric_table import METRICS
from gateway.server import Ending
from services.tokenizer import Tokenizer
from tests.unit.gateway.rig import CARD, SETTINGS, eventually, read, running

pytestmark = pytest.mark.asyncio(loop_scope="session")


def families() -> list[Family]:
    family = GaugeMetricFamily("apples", "How many.", labels=("kind",))
    family.add_metric(("red",), 3)
    return [family]


@pytest_asyncio.fixture(loop_scope="session")
async def port() -> AsyncIterator[int]:
    """Of a listener with one metric."""
    listener = Exposition(families, lambda: False)
    address = await listener.start("127.0.0.1:0")
    yield int(address.rpartition(":")[2])
    await listener.stop()


async def asked(port: int, request: bytes) -> bytes:
    """All that is answered until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return answer


async def test_a_scrape_is_answered_in_the_text_format(port: int) -> None:
    answer = await asked(port, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK") and b"text/plain; version=0.0.4" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert body == b'# HELP apples How many.\n# TYPE apples gauge\napples{kind="red"} 3.0\n'


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n", b"431"),
    ],
    ids=["path", "method", "no version", "tls", "long"],
)
async def test_anything_else_is_refused(port: int, request_bytes: bytes, status: bytes) -> None:
    assert (await asked(port, request_bytes)).startswith(b"HTTP/1.1 " + status)
    assert b"apples" in await asked(port, b"GET /metrics HTTP/1.1\r\n\r\n")


async def test_probes_are_answered(port: int) -> None:
    assert (await asked(port, b"GET /livez HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert (await asked(port, b"GET /readyz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 503")


async def test_a_gateway_is_ready_as_its_health_says(tokenizer: Tokenizer) -> None:
    settings = msgspec.structs.replace(SETTINGS, metrics_listen="127.0.0.1:0", drain_s=0.5)
    async with running(tokenizer, settings, is_ready=False) as front:
        port = int(front.server.operations.metrics_address.rpartition(":")[2])
        request = b"GET /readyz HTTP/1.1\r\n\r\n"
        assert b"not ready" in await asked(port, request)
        front.engine.ready()
        await eventually(lambda: front.server.gateway.engine.phase is Phase.READY)
        assert (await asked(port, request)).endswith(b"\r\n\r\nready\n")
        call = front.generate()
        submit = await front.engine.submit()
        front.server.stop(Ending.DRAIN)
        await eventually(lambda: front.server.gateway.engine.phase is Phase.DRAINING)
        assert b"not ready" in await asked(port, request)
        front.engine.end(submit)
        await call


async def test_who_says_nothing_is_cut(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "HEAD_S", 0.05)
    assert await asked(port, b"GET /met") == b""


async def test_more_connections_than_may_be_are_turned_away(port: int) -> None:
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS)]
    await asyncio.sleep(0)
    assert (await asked(port, b"GET /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 503")
    for _, writer in held:
        writer.close()


async def test_a_gateway_is_scraped_while_it_streams(tokenizer: Tokenizer) -> None:
    settings = msgspec.structs.replace(SETTINGS, metrics_listen="127.0.0.1:0")
    async with running(tokenizer, settings) as front:
        stream = front.stream_generate()
        submit = await front.engine.submit()
        front.engine.say(submit, "a", [1])
        await read(stream)
        url = f"http://{front.server.operations.metrics_address}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read().decode())
        found = {family.name: family for family in text_string_to_metric_families(text)}
        assert found.keys() == {name for metric in METRICS for name in (metric.name, *metric.aliases)}
        (open_calls,) = found["tandem_open_calls"].samples
        assert (open_calls.value, open_calls.labels) == (1, {"model_name": CARD.name, "engine": "0"})
        (info,) = found["vllm:cache_config_info"].samples
        assert (info.labels["block_size"], info.labels["num_gpu_blocks"], info.labels["backend"]) == (
            "16",
            "63",
            "fake",
        )
        (ttft,) = [s for s in found["vllm:time_to_first_token_seconds"].samples if s.name.endswith("_count")]
        assert ttft.value == 0  # told when the call is over
        stream.cancel()
