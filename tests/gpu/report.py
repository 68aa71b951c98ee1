"""What is written down of a run: the machine, a trace of some steps, one JSON file, a table for whoever looks on."""

import gzip
import json
import platform
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from services.executor.cuda.choice import choose, facts_of
from services.executor.cuda.device import Device
from tests.gpu.bench_rig import BLOCK_SIZE, Decoding, Setup, open_bench

_cuda: Any = torch.cuda

PACKAGES = ("torch", "triton", "numpy", "msgspec", "structlog", "llguidance", "flash_attn", "flash_attn_3")
# What makes the host wait for the device, by the names that the profiler has for it.
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")


def environment(device: Device) -> dict[str, Any]:
    """Names and versions; which attention is chosen and why not another."""
    facts = facts_of(device.target, torch.bfloat16, BLOCK_SIZE)
    choice = choose(facts)
    about: dict[str, Any] = {"python": platform.python_version(), "processors": device.num_processors}
    about |= {"packages": {name: version for name in PACKAGES if (version := _version(name))}}
    about |= {"attention": {"decode": choice.decode, "mixed": choice.mixed, "passed_over": choice.passed_over}}
    if device.target.type == "cuda":
        about["gpu"] = _cuda.get_device_name(device.target)
        about["memory_GiB"] = round(_cuda.mem_get_info(device.target)[1] / 2**30, 1)
        about["cuda"] = str(torch.version.cuda)
    return about


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def trace(device: Device, setup: Setup, path: Path) -> dict[str, Any]:
    """Twenty decode steps at depth 2, profiled, as a file for chrome://tracing. Never timed: profiling slows them."""
    bench = open_bench(device, setup)
    decoding = Decoding(bench, setup.buckets[-1], setup.positions // 2)
    decoding.run(2, 4)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.target.type == "cuda" else [])]
    with profile(activities=activities) as profiled:
        decoding.run(2, 20)
    plain = path.with_suffix("")
    profiled.export_chrome_trace(str(plain))
    with plain.open("rb") as source, gzip.open(path, "wb") as packed:
        shutil.copyfileobj(source, packed)
    plain.unlink()
    averages = profiled.key_averages()
    waits = {event.key: event.count for event in averages if event.key in WAITS}
    kernels = [event for event in averages if "CUDA" in str(getattr(event, "device_type", ""))]
    return {"file": path.name, "waits": waits, "kernels_per_step": sum(event.count for event in kernels) / 20}


def write(path: Path, result: dict[str, Any]) -> None:
    """As JSON, and what matters of it on standard output."""
    path.write_text(json.dumps(result, indent=1) + "\n")
    wrong = [finding for finding in result["findings"] if not finding["is_good"]]
    print(f"{len(result['findings'])} comparisons, {len(wrong)} wrong")
    for finding in wrong:
        print(f"  WRONG {finding['name']}: {finding['error']:.3g}, bound {finding['bound']:.3g}")
    for entry in result["decode"]:
        mode = "captured" if entry["captured"] else "eager"
        print(
            f"  {entry['model']:>6} rows {entry['rows']:>3} {mode:>8} depth {entry['depth']}: "
            f"{entry['step_ms_p50']:8.3f} ms, limit {entry['limit_ms']:7.3f} ms ({entry['share_of_limit']:.0%}), "
            f"gap {entry['gap_us_p50']:8.1f} us, {entry['tokens_per_s']:>7} tokens/s"
        )
    print(f"{path}: {result['seconds']} s")
