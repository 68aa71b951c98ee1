"""What watching costs: microseconds a token and a call, and how long a scrape holds up the streams.

Everything runs on the gateway's loop, so these are taken from its tokens. The scrape is of a gateway whose metrics all
have values; `longest_ms` is the longest that no token is written.
"""

import contextlib
import os
import time
from collections.abc import Callable

from gateway.accounts import Generation, Record, log_record
from gateway.exposition import rendered
from gateway.histogram import SHORT_SECONDS, Histogram
from gateway.metrics import Metrics
from gateway.service import Gateway
from services.runtime import logs
from services.runtime.settings import GatewaySettings
from services.wire.memory import memory_link
from services.wire.messages import Load, Timings
from services.wire.topology import SUBMIT

TOKENS, CALLS, SCRAPES = 200_000, 5_000, 20
GENERATION = Generation("r", "", 1, 64, ("stop",), 100, 64, 0, 10.0, 10.5, 11.0, Timings(200_000, 250_000, 500_000))
RECORD = Record("tandem.v1.InferenceService", "Generate", False, "OK", "", 10.0, 11.2, "", "", GENERATION)
LOAD = Load(3, 2, 10, 40, 1.5, step_tokens=(1,) * 16, step_times=(1,) * 18)


def run() -> dict[str, float]:
    """us_per_token, us_per_call (its record into metrics), us_per_line (of the access log), scrape_ms, longest_ms."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        logs.configure("gateway", "info")
        return _figures()


def _figures() -> dict[str, float]:
    outlet, _ = memory_link(SUBMIT, 10)
    settings = GatewaySettings()
    gateway = Gateway(settings, outlet, None, time.monotonic, 1)  # type: ignore[arg-type]  # nothing is tokenized
    gateway.engine.loads.note(LOAD)
    metrics, gaps = Metrics(gateway, settings), Histogram(SHORT_SECONDS)
    figures = {
        "us_per_token": _us(TOKENS, lambda: gaps.observe(0.02)),
        "us_per_call": _us(CALLS, lambda: metrics.observe(RECORD)),
        "us_per_line": _us(CALLS, lambda: log_record(RECORD)),
    }
    slices = [_slices(metrics) for _ in range(SCRAPES)]
    figures["scrape_ms"] = min(sum(each) for each in slices) * 1e3
    figures["longest_ms"] = min(max(each) for each in slices) * 1e3
    return {name: round(value, 3) for name, value in figures.items()}


def _us(times: int, do: Callable[[], None]) -> float:
    start = time.perf_counter()
    for _ in range(times):
        do()
    return (time.perf_counter() - start) / times * 1e6


def _slices(metrics: Metrics) -> list[float]:
    """Seconds of each stretch between two chances for a stream to write."""
    seconds, start = [], time.perf_counter()
    for family in metrics.families():
        rendered(family)
        now = time.perf_counter()
        seconds.append(now - start)
        start = now
    return seconds
