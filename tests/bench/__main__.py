"""Run every benchmark and print its figures; with a path, write them there as JSON too.

Usage: python -m tests.bench [PATH]
"""

import json
import os
import platform
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
    text = json.dumps(figures, indent=2)
    print(text)
    if path is not None:
        Path(path).write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
