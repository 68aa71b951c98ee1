"""How long a decode step takes, beside what reading its weights and KV once must take at the memory's measured rate."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from services.executor.cuda.device import Device
from tests.gpu.bench_rig import Bench, Decoding, Setup, Times, open_bench

WARM_UP = 3


@dataclass(frozen=True)
class Load:
    """Decode steps: at each of these numbers of rows, rows about `context` positions long."""

    rows: tuple[int, ...]
    context: int
    num_steps: int


LOAD, DRY_LOAD = Load((1, 8, 64, 256), 1024, 100), Load((1, 3), 24, 3)


def ceilings(device: Device, is_dry: bool) -> dict[str, float]:
    """What this device does at best: bytes moved a second, read and written, and bfloat16 products."""
    num_bytes, size = (1 << 22, 128) if is_dry else (4 << 30, 8192)
    with device.working():
        source = torch.empty(num_bytes // 2, dtype=torch.uint8, device=device.target).random_()
        target = torch.empty_like(source)
        left, right = (torch.randn(size, size, device=device.target).bfloat16() for _ in range(2))
        copy_ms = _median_ms(device, lambda: target.copy_(source))
        product_ms = _median_ms(device, lambda: left @ right)
    return {"copy_TB_s": num_bytes / copy_ms * 1e-9, "product_TFLOP_s": 2 * size**3 / product_ms * 1e-9}


def _median_ms(device: Device, act: Callable[[], object], num_runs: int = 7) -> float:
    times = []
    for _ in range(num_runs + 2):
        before, after = device.event(is_timed=True), device.event(is_timed=True)
        before.record()
        act()
        after.record()
        after.wait()
        times.append(after.ms_since(before))
    return statistics.median(times[2:])


def decode(device: Device, setup: Setup, load: Load, bytes_per_second: float) -> list[dict[str, Any]]:
    """One entry for each number of rows, captured or not, at depth 1 and 2."""
    entries = []
    for captured in (False, True):
        began = perf_counter()
        bench = open_bench(device, replace(setup, buckets=load.rows if captured else ()))
        device.synchronize()
        opened_s = perf_counter() - began
        for num_rows in load.rows:
            for depth in (1, 2):
                times = Decoding(bench, num_rows, load.context).run(depth, load.num_steps + WARM_UP)
                about = {"rows": num_rows, "captured": captured, "depth": depth, "opened_s": round(opened_s, 2)}
                entries.append(about | _figures(bench, times, num_rows, bytes_per_second))
        del bench
        if device.target.type == "cuda":
            torch.cuda.empty_cache()
    return entries


def _figures(bench: Bench, times: Times, num_rows: int, bytes_per_second: float) -> dict[str, Any]:
    config, element = bench.setup.config, bench.setup.dtype.itemsize
    kv_bytes = times.kv_positions / len(times.steps) * config.kv_values_per_token * element
    floor_ms = (bench.made.read_bytes + kv_bytes) / bytes_per_second * 1e3
    step_ms, gaps = statistics.median(times.steps[WARM_UP:]), sorted(times.gaps[WARM_UP:])
    periods = [step + gap for step, gap in zip(times.steps[WARM_UP:], times.gaps[WARM_UP:], strict=False)]
    period_ms = statistics.median(periods)
    return {
        "model": config.name,
        "step_ms_p50": round(step_ms, 4),
        "limit_ms": round(floor_ms, 4),
        "share_of_limit": round(floor_ms / step_ms, 3),
        "gap_us_p50": round(gaps[len(gaps) // 2] * 1e3, 1),
        "gap_us_p99": round(gaps[int(len(gaps) * 0.99)] * 1e3, 1),
        "launch_ms_p50": round(statistics.median(times.launches[WARM_UP:]), 4),
        "tokens_per_s": round(num_rows / period_ms * 1e3),
    }
