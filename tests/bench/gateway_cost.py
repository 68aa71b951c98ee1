"""What a streamed token costs the gateway, in processor time of its own, and how much later it arrives for it.

A whole server on the simulated backend, once at 20 ms a step and once as fast as it can; a reader that costs next to
nothing (stream_reader.py) takes 1 to 256 streams. Tokens and messages are counted there, processor time is the gateway
process's alone. `each` is a server that holds nothing back: one message a token as long as it keeps up.

Floor, where steps are 20 ms long: what the same messages at the same pace cost the library alone (bare_stream.py) on a
machine that is as busy: the engine does the same work beside it, for calls that are answered once. Added delay: one
more stream asks for no delay at all and so shows when each step's tokens left; every other token is held against that.
First token: what a client waits beyond the engine's own clock (queue and prefill).
"""

import asyncio
import bisect
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import psutil

from tandem.v1 import common_pb2, inference_pb2
from tests.bench import bare_stream
from tests.bench.stream_reader import Message, StreamReader
from tests.e2e.processes import server

STREAMS = (1, 16, 64, 256)
ROUNDS = 2
WARM_UP_S = 1.5
WINDOW_S = 3.0
NUM_FIRST_TOKENS = 50
LONG = 8000
PROBE_LEAD_S = 0.3
MOST_STEPS_OFF = 4
PACES_US = {"20_ms_steps": 20_000.0, "fast_steps": 0.0}
PATH = "/tandem.v1.InferenceService/StreamGenerate"
UNARY_PATH = "/tandem.v1.InferenceService/Generate"


@dataclass(frozen=True)
class Window:
    """What was seen while one server was watched."""

    streams: Mapping[int, Sequence[Message]]  # from the beginning of each stream
    begin: float
    end: float
    cpu_s: float

    @property
    def num_messages(self) -> int:
        """Inside the window."""
        return sum(self.begin <= at < self.end for stream in self.streams.values() for at, _ in stream)

    def arrivals(self) -> list[list[float]]:
        """When each token arrived, by stream, in the order in which the streams were opened."""
        return [
            [at for at, raw in stream for _ in range(inference_pb2.GenerateChunk.FromString(raw).num_tokens)]
            for _, stream in sorted(self.streams.items())
        ]


def run() -> dict[str, object]:
    """Figures by pace, way of sending and number of streams."""
    return {
        f"{pace}_{way}": _measured(step_us, coalesce_ms)
        for pace, step_us in PACES_US.items()
        for way, coalesce_ms in (("merged", None), ("each", 0.0))
    }


def _measured(step_us: float, coalesce_ms: float | None) -> dict[str, object]:
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
        address = process.wait_ready()
        pid = process.services()["gateway"].pid
        figures: dict[str, object] = {}
        if step_us:
            figures |= asyncio.run(_first_token(address))
        for num_streams in STREAMS:
            figures[str(num_streams)] = _streams(address, pid, num_streams, step_us * 1e-6)
        process.stop()
    return figures


def _streams(address: str, pid: int, count: int, step_s: float) -> dict[str, float]:
    requests = [_request(0, LONG, max_delay_ms=0), *(_request(number, LONG) for number in range(count))]
    windows = [_window(address, pid, PATH, requests)]
    tokens = sum(windows[0].begin <= at < windows[0].end for stream in windows[0].arrivals() for at in stream)
    floors = []
    if step_s:
        # As many messages a step as the gateway sent.
        with _bare_server(step_s, max(round(tokens / windows[0].num_messages), 1)) as (bare_address, bare_pid):
            for _ in range(ROUNDS):
                # The engine at the same work, for calls that are answered once.
                busy = StreamReader(address, UNARY_PATH)
                busy.open(requests)
                floors.append(_window(bare_address, bare_pid, bare_stream.PATH, [b""] * (count + 1)))
                busy.close()
            windows += [_window(address, pid, PATH, requests) for _ in range(ROUNDS - 1)]
    return _figures(windows) | (_beside_floor(windows, floors) if floors else {})


def _window(address: str, pid: int, path: str, requests: Sequence[bytes]) -> Window:
    """Watch a server with so many streams for a while; the first is opened before the others."""
    process = psutil.Process(pid)
    reader = StreamReader(address, path)
    reader.open(requests[:1])
    reader.read(PROBE_LEAD_S)
    reader.open(requests[1:])
    reader.read(WARM_UP_S)
    begin, cpu_begin = time.monotonic(), _cpu(process)
    reader.read(WINDOW_S)
    end, cpu_end = time.monotonic(), _cpu(process)
    return Window(reader.close(), begin, end, cpu_end - cpu_begin)


def _figures(windows: Sequence[Window]) -> dict[str, float]:
    arrivals = [window.arrivals() for window in windows]
    num_tokens = sum(
        window.begin <= at < window.end
        for window, streams in zip(windows, arrivals, strict=True)
        for stream in streams
        for at in stream
    )
    num_messages = sum(window.num_messages for window in windows)
    seconds = sum(window.end - window.begin for window in windows)
    cpu_s = sum(window.cpu_s for window in windows)
    return {
        "tokens_per_s": round(num_tokens / seconds),
        "tokens_per_message": round(num_tokens / num_messages, 2),
        "us_per_message": round(cpu_s / num_messages * 1e6, 1),
        "tokens_per_cpu_s": round(num_tokens / cpu_s),
        "cpu_share": round(cpu_s / seconds, 3),
    }


def _beside_floor(windows: Sequence[Window], floors: Sequence[Window]) -> dict[str, float]:
    cost = sum(window.cpu_s for window in windows) / sum(window.num_messages for window in windows)
    floor = sum(window.cpu_s for window in floors) / sum(window.num_messages for window in floors)
    late: list[float] = []
    for window in windows:
        probe, *others = window.arrivals()
        late += [delay for stream in others for delay in _delays(stream, probe, window.begin)]
    return {
        "floor_us_per_message": round(floor * 1e6, 1),
        "over_floor": round(cost / floor, 2),
        "added_delay_ms_p50": round(statistics.median(late) * 1000, 2),
        "added_delay_ms_p99": round(statistics.quantiles(late, n=100)[98] * 1000, 2),
    }


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


@contextmanager
def _bare_server(step_s: float, gathered: int) -> Iterator[tuple[str, int]]:
    """The address and the process of the library alone."""
    command = [sys.executable, "-m", bare_stream.__name__, str(step_s), str(gathered)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.kill()


async def _first_token(address: str) -> dict[str, float]:
    """Milliseconds beyond the engine's own clock, medians of calls one after another: for the client, and as far as
    the server saw it (from the arrival of the call to its first token in the gateway)."""
    beyond, within = [], []
    async with grpc.aio.insecure_channel(address) as channel:
        method: Any = channel.unary_stream(PATH)
        for number in range(NUM_FIRST_TOKENS):
            begin = time.monotonic()
            call = method(_request(number, 2))
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
