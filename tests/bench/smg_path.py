"""What the HTTP path costs: the same requests straight over gRPC and through smg, on simulated engines without a clock.

Two engines stand behind smg; the direct calls go to one of them. Latencies are medians and 99th percentiles of calls
one after the other, over one connection, in milliseconds; requests a second are those of 16 clients at once. Prompts
are text, and differ. Everything shares one machine, so the figures hold within a run.
"""

import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path

from tandem import Client
from tests.e2e.processes import Settings
from tests.e2e.smg import HOST, fleet, smg, vllm_address, worker

NUM_CALLS = 200
NUM_CLIENTS = 16
CALLS_A_CLIENT = 40
LONG = 64

ENGINE: Settings = {
    "model": {"name": "bench"},
    "executor": {"backend": "simulated", "context_length": 2048, "num_blocks": 2049},
    "links": {"death_s": 30.0},
}

Ask = Callable[[str, int], None]


def run() -> object:
    """The figures, as json can hold them."""
    with tempfile.TemporaryDirectory() as folder, fleet(worker(ENGINE), worker(ENGINE)) as engines:
        addresses = [vllm_address(engine.process) for engine in engines]
        with smg(addresses, Path(folder) / "log", "--policy", "round_robin") as front:
            ways: dict[str, Callable[[], Way]] = {
                "grpc": lambda: Direct(engines[0].address),
                "http": lambda: Http(front.port),
            }
            figures = {name: _measure(open_way) for name, open_way in ways.items()}
    return {**figures, "added_ms_p50": _added(figures["grpc"], figures["http"])}


class Way:
    """One client's way to the engines."""

    def first(self, prompt: str) -> None:
        """The first token of a stream, which is then left."""
        raise NotImplementedError

    def whole(self, prompt: str, max_tokens: int) -> None:
        """An answer in one piece."""
        raise NotImplementedError

    def close(self) -> None:
        """Let the connection go."""
        raise NotImplementedError


class Direct(Way):
    """Over gRPC."""

    def __init__(self, address: str) -> None:
        self._client = Client(address)

    def first(self, prompt: str) -> None:
        with self._client.stream_generate(prompt, max_tokens=LONG, ignore_eos=True) as stream:
            next(stream)

    def whole(self, prompt: str, max_tokens: int) -> None:
        self._client.generate(prompt, max_tokens=max_tokens, ignore_eos=True)

    def close(self) -> None:
        self._client.close()


class Http(Way):
    """Through smg, as an OpenAI completion."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=60)

    def first(self, prompt: str) -> None:
        # A stream that is left costs its connection; the handshake is part of neither figure's claim but of this one.
        response = self._ask(prompt, LONG, is_stream=True)
        while not response.readline().startswith(b"data:"):
            pass
        self._connection.close()

    def whole(self, prompt: str, max_tokens: int) -> None:
        self._ask(prompt, max_tokens, is_stream=False).read()

    def close(self) -> None:
        self._connection.close()

    def _ask(self, prompt: str, max_tokens: int, is_stream: bool) -> http.client.HTTPResponse:
        body = {"model": "bench", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": is_stream}
        self._connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        assert response.status == 200, response.read()
        return response


def _measure(open_way: Callable[[], Way]) -> dict[str, object]:
    numbers = count()

    def prompt() -> str:
        return f"{next(numbers)} one two three four five six seven eight"

    with closing(open_way()) as way:
        for _ in range(NUM_CALLS // 10):
            way.whole(prompt(), 1)
        figures: dict[str, object] = {
            "first_token_of_stream_ms": _latency(lambda: way.first(prompt())),
            "one_token_ms": _latency(lambda: way.whole(prompt(), 1)),
            f"{LONG}_tokens_ms": _latency(lambda: way.whole(prompt(), LONG)),
        }

    def client() -> None:
        with closing(open_way()) as way:
            for _ in range(CALLS_A_CLIENT):
                way.whole(prompt(), LONG)

    began = time.perf_counter()
    with ThreadPoolExecutor(NUM_CLIENTS) as threads:
        for done in [threads.submit(client) for _ in range(NUM_CLIENTS)]:
            done.result()
    rate = NUM_CLIENTS * CALLS_A_CLIENT / (time.perf_counter() - began)
    return {**figures, f"requests_per_s_of_{NUM_CLIENTS}_clients": round(rate, 1)}


def _latency(call: Callable[[], None]) -> dict[str, float]:
    taken = []
    for _ in range(NUM_CALLS):
        began = time.perf_counter()
        call()
        taken.append((time.perf_counter() - began) * 1000)
    return {"p50": round(statistics.median(taken), 3), "p99": round(statistics.quantiles(taken, n=100)[98], 3)}


def _added(direct: dict[str, object], through: dict[str, object]) -> dict[str, float]:
    """What the way through smg adds to each median."""
    both = {name: (direct[name], through[name]) for name in direct}
    return {
        name: round(there["p50"] - here["p50"], 3)
        for name, (here, there) in both.items()
        if isinstance(here, dict) and isinstance(there, dict)
    }
