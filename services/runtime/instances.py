"""What the supervisor cannot see of an executor: that it has become ready, and that nobody hears it any more.

Two files of the run directory hold the instance in question. The executor says that it is ready, the scheduler which
one it has lost. They name the same only when an executor is lost that is still there: it hangs, and must be killed.
"""

from pathlib import Path

from services.runtime.run_dir import publish

READY_FILE = "executor.ready"
LOST_FILE = "executor.lost"


def tell_ready(run_dir: str, instance: int) -> None:
    """This executor is ready; without a run directory nobody asks."""
    _tell(run_dir, READY_FILE, instance)


def tell_lost(run_dir: str, instance: int) -> None:
    """This executor is not heard any more."""
    _tell(run_dir, LOST_FILE, instance)


def is_ready(run_dir: Path) -> bool:
    """Whether an executor has become ready since the last `clear`."""
    return (run_dir / READY_FILE).exists()


def is_lost(run_dir: Path) -> bool:
    """Whether the executor that became ready is the one that was lost."""
    try:
        return (run_dir / LOST_FILE).read_text() == (run_dir / READY_FILE).read_text()
    except FileNotFoundError:
        return False


def clear(run_dir: Path) -> None:
    """The executor has ended: what was told of it is of no interest any more."""
    for name in (READY_FILE, LOST_FILE):
        (run_dir / name).unlink(missing_ok=True)


def _tell(run_dir: str, name: str, instance: int) -> None:
    if run_dir:
        publish(Path(run_dir) / name, str(instance))
