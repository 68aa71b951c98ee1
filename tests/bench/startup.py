"""How long a start takes: from the command `tandem serve` to a server that says it is ready, on a warm disk.

Seconds, the median of turns after one that does not count. `services_s` tells when each process had imported what it
needs and when it was ready, counted from the command too. Beside them what the executor took of memory at most
(`executor_peak_mib`, the kernel's own count) and how large its KV pool is, of which only blocks that were written take
any; and `steal`, the share of processor time that other guests of the machine took during the turns.
"""

import datetime
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from services.executor.inspection import inspect
from services.runtime.models import resolve
from services.runtime.settings import ModelSettings
from tandem import Client
from tests.e2e.processes import PATIENCE_S, Server, Settings, server

NUM_TURNS = 5
SETTINGS: Settings = {"gateway": {"listen": "127.0.0.1:0"}}
MIB = 1 << 20
STAGES = {"service.starting": "starting", "service.ready": "ready", "gateway.listening": "ready"}


@dataclass(frozen=True)
class Turn:
    """One start. stages: when each process came to each stage, in seconds from the command."""

    ready_s: float
    stages: dict[tuple[str, str], float]
    peak_bytes: int
    num_kv_tokens: int


def run() -> dict[str, object]:
    """See the module docstring."""
    turn()
    before = psutil.cpu_times()
    turns = [turn() for _ in range(NUM_TURNS)]
    after = psutil.cpu_times()
    kv_bytes = inspect(resolve(ModelSettings()), "fast", 0).kv_bytes_per_token
    return {
        "ready_s": median([each.ready_s for each in turns]),
        "each_s": [round(each.ready_s, 2) for each in turns],
        "services_s": {
            f"{service} {stage}": median([each.stages[service, stage] for each in turns])
            for service, stage in sorted(turns[0].stages, key=lambda key: turns[0].stages[key])
        },
        "executor_peak_mib": max(each.peak_bytes for each in turns) // MIB,
        "kv_pool_mib": turns[-1].num_kv_tokens * kv_bytes // MIB,
        "steal": round((after.steal - before.steal) / (sum(after) - sum(before)), 3),
    }


def turn() -> Turn:
    """Start a server, and stop it once it is ready."""
    now, begun = time.time(), time.monotonic()
    with server(SETTINGS) as started:
        with Client(started.address()) as client:
            client.wait_until_ready(PATIENCE_S)
            ready_s = time.monotonic() - begun
        [loaded] = started.entries("model.loaded")
        [opened] = [entry for entry in started.entries("service.ready") if entry["service"] == "executor"]
        peak = peak_bytes(started.services()["executor"].pid)
        stages = stages_of(started, now)
        started.stop()
    return Turn(ready_s, stages, peak, loaded["num_blocks"] * opened["block_size"])


def stages_of(started: Server, begun: float) -> dict[tuple[str, str], float]:
    """begun: seconds since the epoch."""
    return {
        (entry["service"], stage): datetime.datetime.fromisoformat(entry["time"]).timestamp() - begun
        for event, stage in STAGES.items()
        for entry in started.entries(event)
    }


def peak_bytes(pid: int) -> int:
    """Of resident memory, in the life of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc names no VmHWM")


def median(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds), 2)
