"""How many threads computing is worth: one for each core that this process may run on.

Where a core runs two threads they share its arithmetic, and a second gains nothing.
"""

import os
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")


def num_cores(cpus: Path = _CPUS) -> int:
    """cpus: where Linux tells which threads share a core; without it, each of them counts."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    return len({_siblings(cpus, cpu) for cpu in os.sched_getaffinity(0)})


def _siblings(cpus: Path, cpu: int) -> str:
    try:
        return (cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)
