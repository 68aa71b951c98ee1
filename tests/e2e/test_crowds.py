"""Crowds: more calls at once than the server has room or file descriptors for, and readers that stop reading."""

import asyncio
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any

import grpc
import pytest

from tandem.errors import from_rpc
from tandem.v1 import common_pb2, inference_pb2
from tests.e2e.processes import Server, Settings, server

pytestmark = pytest.mark.asyncio(loop_scope="session")

GENERATE, STREAM = "/tandem.v1.InferenceService/Generate", "/tandem.v1.InferenceService/StreamGenerate"
# Of one process; the server's inherit it.
MOST_FILES = 1024
# How many files a process may open, once it is at work, without it being one a call.
SPARE_FILES = 16


@contextmanager
def few_files() -> Iterator[None]:
    """Whatever is started meanwhile may open no more than MOST_FILES."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_FILES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def num_files(process: Server) -> dict[str, int]:
    return {name: service.num_fds() for name, service in process.services().items()}


def request(max_tokens: int, number: int = 0, **output: Any) -> bytes:
    made = inference_pb2.GenerateRequest(
        token_ids=common_pb2.TokenIds(ids=[100 + number % 1000, 7, 8]),
        stopping=common_pb2.Stopping(max_tokens=max_tokens, ignore_eos=True),
        output=common_pb2.Output(**output),
    )
    return made.SerializeToString()


@pytest.mark.parametrize(
    ("num_calls", "max_waiting"), [(300, 50), pytest.param(1500, 300, marks=pytest.mark.soak)], ids=["300", "1500"]
)
async def test_every_call_of_a_crowd_is_answered_or_refused_and_none_costs_a_file(
    num_calls: int, max_waiting: int
) -> None:
    settings: Settings = {
        # Steps so long that a slow client, too, asks for more than is answered meanwhile.
        "executor": {"backend": "echo", "step_fixed_us": 50_000.0},
        "scheduler": {"max_num_seqs": 16, "max_waiting": max_waiting},
        "gateway": {"listen": "127.0.0.1:0", "drain_s": 1.0},
        "links": {"death_s": 30.0},
    }
    with few_files(), server(settings) as process:
        address = await asyncio.to_thread(process.wait_ready)
        async with grpc.aio.insecure_channel(address) as channel:
            method: Any = channel.unary_unary(GENERATE)
            await method(request(1), timeout=120)
            before = num_files(process)

            async def outcome(number: int) -> str:
                try:
                    await method(request(4, number), timeout=120)
                except grpc.aio.AioRpcError as error:
                    return from_rpc(error).reason
                return "answered"

            outcomes = asyncio.gather(*[outcome(number) for number in range(num_calls)])
            peak = Counter[str]()
            while not outcomes.done():
                peak |= Counter(num_files(process))
                await asyncio.sleep(0.02)
            found = Counter(await outcomes)
        assert set(found) == {"answered", "QUEUE_FULL"} and found.total() == num_calls
        assert found["answered"] >= max_waiting
        assert {name: peak[name] - before[name] for name in before if peak[name] - before[name] > SPARE_FILES} == {}
        await asyncio.to_thread(process.stop)


@pytest.mark.soak
async def test_readers_that_stop_cost_bounded_memory_and_no_neighbour_s_time() -> None:
    """200 streams that nobody reads, for 60 s, beside 8 that are read; then the same 8 alone."""
    settings: Settings = {
        "executor": {"backend": "simulated", "num_blocks": 120_000, "max_rows": 256, "step_fixed_us": 20_000.0},
        "scheduler": {"max_num_seqs": 256},
        "gateway": {"listen": "127.0.0.1:0", "drain_s": 1.0, "stall_s": 10.0, "max_unread_tokens": 1024},
        "links": {"death_s": 30.0},
    }
    with server(settings) as process:
        address = await asyncio.to_thread(process.wait_ready)
        gateway = process.services()["gateway"]
        alone = await gaps(address, 20.0)
        # A channel that takes next to nothing ahead of its readers.
        options = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024))
        async with grpc.aio.insecure_channel(address, options) as channel:
            slow = [await unread(channel, number) for number in range(200)]
            memory = gateway.memory_info().rss
            beside = await gaps(address, 60.0)
            grown = gateway.memory_info().rss - memory
            ends = Counter([await end_of(stream) for stream in slow])
        await asyncio.to_thread(process.stop)
    print({"alone_p99_ms": p99(alone), "beside_p99_ms": p99(beside), "grown_mb": grown / 2**20})
    assert ends == {"SLOW_READER": 200}
    assert grown < 200 * 2**20
    assert p99(beside) <= 1.2 * max(p99(alone), 1000 * median(alone))


async def unread(channel: grpc.aio.Channel, number: int) -> Any:
    """A stream that has begun, and that nobody reads on."""
    method: Any = channel.unary_stream(STREAM)
    stream = method(request(8000, number, return_token_ids=True))
    assert await stream.read() is not grpc.aio.EOF
    return stream


async def end_of(stream: Any) -> str:
    """How a stream ends, once it is read on."""
    try:
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return from_rpc(error).reason
    return "finished"


async def gaps(address: str, seconds: float) -> list[float]:
    """Seconds between the messages of 8 streams, each with one token."""
    found: list[float] = []

    async def read(channel: grpc.aio.Channel, number: int) -> None:
        method: Any = channel.unary_stream(STREAM)
        stream = method(request(8000, 500 + number, max_delay_ms=0))
        await stream.read()
        then, end = time.monotonic(), time.monotonic() + seconds
        while then < end and await stream.read() is not grpc.aio.EOF:
            now = time.monotonic()
            found.append(now - then)
            then = now
        stream.cancel()

    async with grpc.aio.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),)) as channel:
        await asyncio.gather(*[read(channel, number) for number in range(8)])
    return found


def p99(values: list[float]) -> float:
    """In milliseconds."""
    return 1000 * quantiles(values, n=100)[98]
