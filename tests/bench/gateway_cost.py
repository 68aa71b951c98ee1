"""What a streamed token costs the gateway, in processor time of its own, and how much later it arrives for it.

A whole server on the simulated backend, once at 20 ms a step and once as fast as it can; one process of clients reads
1 to 256 streams. Tokens and messages are counted at the client, processor time is the gateway process's alone. `each`
is a server that holds nothing back: one message a token as long as it keeps up.

Added delay, where steps are long enough to be told apart: one more stream asks for no delay at all and so shows when
each step's tokens left; every other token is held against that. First token: what a client waits beyond the engine's
own clock (queue and prefill).
"""

import asyncio
import bisect
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import psutil

from tandem.v1 import common_pb2, inference_pb2
from tests.e2e.processes import server

STREAMS = (1, 16, 64, 256)
WARM_UP_S = 2.0
WINDOW_S = 5.0
NUM_FIRST_TOKENS = 50
LONG = 8000
PROBE_LEAD_S = 0.3
MOST_STEPS_OFF = 4
PACES_US = {"20_ms_steps": 20_000.0, "fast_steps": 0.0}


@dataclass
class Heard:
    """One stream's messages as bytes, with their times of arrival."""

    messages: list[tuple[float, bytes]] = field(default_factory=list)

    def arrivals(self) -> list[float]:
        """When each token arrived."""
        tokens = []
        for at, raw in self.messages:
            tokens += [at] * inference_pb2.GenerateChunk.FromString(raw).num_tokens
        return tokens


def run() -> dict[str, object]:
    """Figures by pace, way of sending and number of streams."""
    return {
        f"{pace}_{way}": asyncio.run(_measured(step_us, coalesce_ms))
        for pace, step_us in PACES_US.items()
        for way, coalesce_ms in (("merged", None), ("each", 0.0))
    }


async def _measured(step_us: float, coalesce_ms: float | None) -> dict[str, object]:
    gateway: dict[str, Any] = {"listen": "127.0.0.1:0", "drain_s": 0.5}
    if coalesce_ms is not None:
        gateway["coalesce_ms"] = coalesce_ms
    settings: Mapping[str, Mapping[str, Any]] = {
        "executor": {
            "backend": "simulated",
            "num_blocks": 140_000,
            "max_rows": 300,
            "context_length": 2 * LONG,
            "step_fixed_us": step_us,
        },
        "scheduler": {"max_num_seqs": 300},
        "gateway": gateway,
        "links": {"death_s": 30.0},
    }
    with server(settings, "--log-level", "warning") as process:
        address = await asyncio.to_thread(process.wait_ready)
        pid = process.services()["gateway"].pid
        figures: dict[str, object] = {}
        async with grpc.aio.insecure_channel(address) as channel:
            if step_us:
                figures |= await _first_token(channel)
            for num_streams in STREAMS:
                figures[str(num_streams)] = await _streams(channel, psutil.Process(pid), num_streams, bool(step_us))
        await asyncio.to_thread(process.stop)
    return figures


async def _streams(channel: grpc.aio.Channel, gateway: psutil.Process, count: int, is_paced: bool) -> dict[str, float]:
    heard = [Heard() for _ in range(count)]
    probe = Heard()
    readers = [asyncio.create_task(_read(channel, count, probe, max_delay_ms=0))]
    await asyncio.sleep(PROBE_LEAD_S)
    readers += [asyncio.create_task(_read(channel, number, each)) for number, each in enumerate(heard)]
    await asyncio.sleep(WARM_UP_S)
    begin, cpu_begin = time.monotonic(), _cpu(gateway)
    await asyncio.sleep(WINDOW_S)
    end, cpu_end = time.monotonic(), _cpu(gateway)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    messages = [at for each in (*heard, probe) for at, _ in each.messages if begin <= at < end]
    arrivals = [each.arrivals() for each in heard]
    steps = probe.arrivals()
    tokens = [at for each in (*arrivals, steps) for at in each if begin <= at < end]
    cpu_s = cpu_end - cpu_begin
    figures = {
        "tokens_per_s": round(len(tokens) / (end - begin)),
        "tokens_per_message": round(len(tokens) / len(messages), 2),
        "us_per_message": round(cpu_s / len(messages) * 1e6, 1),
        "tokens_per_cpu_s": round(len(tokens) / cpu_s),
        "cpu_share": round(cpu_s / (end - begin), 3),
    }
    if is_paced:
        late = [delay for each in arrivals if each for delay in _delays(each, steps, begin)]
        figures["added_delay_ms_p50"] = round(statistics.median(late) * 1000, 2)
        figures["added_delay_ms_p99"] = round(statistics.quantiles(late, n=100)[98] * 1000, 2)
    return figures


def _delays(arrivals: list[float], probe: list[float], since: float) -> list[float]:
    """How much later than the probe's token of the same step each token came.

    Both streams have a token in every step, and the first token of a stream is never held: it tells which step that
    was, but for a few when many join at once. The right one is that in which the promptest quarter of the tokens is
    just in time.
    """
    begun = bisect.bisect_left(probe, arrivals[0])
    tries = []
    for shift in range(begun - MOST_STEPS_OFF, begun + MOST_STEPS_OFF + 1):
        gaps = [
            at - probe[index + shift]
            for index, at in enumerate(arrivals)
            if at >= since and 0 <= index + shift < len(probe)
        ]
        if len(gaps) > 1:
            tries.append((abs(statistics.quantiles(gaps, n=4)[0]), gaps))
    return min(tries)[1]


async def _read(channel: grpc.aio.Channel, number: int, heard: Heard, max_delay_ms: int | None = None) -> None:
    call = _open(channel, _request(number, LONG, max_delay_ms))
    while (raw := await call.read()) is not grpc.aio.EOF:
        heard.messages.append((time.monotonic(), raw))


def _open(channel: grpc.aio.Channel, request: bytes) -> Any:
    """A stream of bytes, as they come."""
    method: Any = channel.unary_stream("/tandem.v1.InferenceService/StreamGenerate")
    return method(request)


async def _first_token(channel: grpc.aio.Channel) -> dict[str, float]:
    """Milliseconds beyond the engine's own clock, medians of calls one after another: for the client, and as far as
    the server saw it (from the arrival of the call to its first token in the gateway)."""
    beyond, within = [], []
    for number in range(NUM_FIRST_TOKENS):
        call = _open(channel, _request(number, 2))
        begin = time.monotonic()
        await call.read()
        waited_ms = (time.monotonic() - begin) * 1000
        last = b""
        while (raw := await call.read()) is not grpc.aio.EOF:
            last = raw
        timings = inference_pb2.GenerateChunk.FromString(last).timings
        beyond.append(waited_ms - timings.queue_ms - timings.prefill_ms)
        within.append(timings.ttft_ms - timings.queue_ms - timings.prefill_ms)
    return {
        "first_token_overhead_ms_p50": round(statistics.median(beyond), 3),
        "first_token_overhead_server_ms_p50": round(statistics.median(within), 3),
    }


def _request(number: int, max_tokens: int, max_delay_ms: int | None = None) -> bytes:
    request = inference_pb2.GenerateRequest(
        token_ids=common_pb2.TokenIds(ids=[100 + number, 7, 8, 9]),
        sampling=common_pb2.Sampling(temperature=0),
        stopping=common_pb2.Stopping(max_tokens=max_tokens, ignore_eos=True),
        output=common_pb2.Output(max_delay_ms=max_delay_ms),
    )
    return request.SerializeToString()


def _cpu(process: psutil.Process) -> float:
    """Seconds of processor time so far."""
    times = process.cpu_times()
    return times.user + times.system
