"""Run the check and write one JSON file and one trace. Exit status 1 when anything is wrong, 0 without a GPU.

Usage: python -m tests.gpu [--dry-run] [--out FOLDER] [--models 135M,1B,8B]
"""

import argparse
import datetime
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from services.executor.cuda.device import CpuDevice, Device
from services.executor.cuda.gpu import CudaDevice
from tests.gpu import correctness, report, speed, steps
from tests.gpu.bench_rig import Setup
from tests.gpu.correctness import Finding
from tests.gpu.shapes import SHAPES, SMALL

RESULTS = Path(__file__).parents[2] / "bench/results/gpu"


def main() -> int:
    """See the module docstring."""
    arguments = _arguments()
    is_dry = arguments.dry_run
    if not is_dry and not torch.cuda.is_available():
        print("SKIPPED: torch sees no GPU of CUDA; --dry-run does the same on a CPU, small")
        return 0
    began = time.monotonic()
    device = _open(is_dry)
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = f"{'dry-run' if is_dry else 'gpu-check'}-{datetime.date.today()}"
    findings = [_noted(finding) for finding in _findings(device, is_dry)]
    limits = speed.ceilings(device, is_dry)
    result: dict[str, Any] = {"schema": 1, "date": str(datetime.date.today()), "is_dry": is_dry}
    result |= {"environment": report.environment(device), "findings": findings, "ceilings": limits}
    result["decode"] = _decode(device, arguments, limits["copy_TB_s"] * 1e12)
    setup = _traced(is_dry)
    result["trace"] = report.trace(device, setup, arguments.out / f"{name}.trace.json.gz")
    result["seconds"] = round(time.monotonic() - began, 1)
    report.write(arguments.out / f"{name}.json", result)
    return int(not all(finding["is_good"] for finding in findings))


def _open(is_dry: bool) -> Device:
    if is_dry:
        torch.set_num_threads(1)  # small shapes; and it may run among other tests
        return CpuDevice()
    return CudaDevice()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="Check the torch backend on a GPU.")
    parser.add_argument("--dry-run", action="store_true", help="the same code on a CPU, at small shapes")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="where the two files go")
    parser.add_argument("--models", default=",".join(SHAPES), help="which shapes decode is timed at")
    return parser.parse_args()


def _findings(device: Device, is_dry: bool) -> Iterator[Finding]:
    plan = steps.DRY_PLAN if is_dry else steps.PLAN
    yield from correctness.attentions(device, is_dry)
    yield from correctness.kernels(device, is_dry)
    yield from steps.against_the_cpu(device)
    for dtype in (torch.float32, torch.bfloat16):
        config = SMALL if is_dry else SHAPES["135M"]
        setup = Setup(config, dtype, plan.buckets[-1], 2 * plan.context)
        yield from steps.in_flight_and_captured(device, plan, setup)
        yield from steps.without_waiting(device, plan, setup)


def _noted(finding: Finding) -> dict[str, Any]:
    print(f"{'ok   ' if finding.is_good else 'WRONG'} {finding.name}: {finding.error:.3g}", flush=True)
    return asdict(finding) | {"is_good": finding.is_good}


def _decode(device: Device, arguments: argparse.Namespace, bytes_per_second: float) -> list[dict[str, Any]]:
    load = speed.DRY_LOAD if arguments.dry_run else speed.LOAD
    configs = [SMALL] if arguments.dry_run else [SHAPES[name] for name in arguments.models.split(",")]
    entries = []
    for config in configs:
        # The longest row begins a quarter beyond the usual length, and grows by a position a step.
        positions = load.context * 5 // 4 + load.num_steps + speed.WARM_UP
        setup = Setup(config, torch.bfloat16, load.rows[-1], positions)
        entries += speed.decode(device, setup, load, bytes_per_second)
    return entries


def _traced(is_dry: bool) -> Setup:
    if is_dry:
        return Setup(SMALL, torch.bfloat16, 3, 96, buckets=(3,))
    return Setup(SHAPES["1B"], torch.bfloat16, 64, 2048, buckets=(64,))


if __name__ == "__main__":
    sys.exit(main())
