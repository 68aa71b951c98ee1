"""How much of the processors' time others took: the host of a virtual machine (steal) and processes that are not ours.

A figure of a few per cent means nothing while others take as much. So a window that was disturbed is measured again, a
bounded number of times; which one counts is decided by what others took, never by the figure itself. Linux only.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

# The most that others may take of a window that counts. The kernel's own work for us is in it.
MAX_SHARE = 0.02
MAX_WINDOWS = 9

_IDLE, _IOWAIT, _GUEST = 3, 4, 8  # columns of the first line of /proc/stat; guest time is within user time


@dataclass(frozen=True)
class Reading:
    """Clock ticks since the start of the machine: of all processors, of them busy or stolen, and of them ours."""

    total: int
    taken: int
    ours: int


@dataclass(frozen=True)
class Window(Generic[T]):
    """What was measured, and the share of the processors' time that others took meanwhile."""

    figure: T
    others_share: float


def read(process_ids: Iterable[int]) -> Reading:
    """The ticks now; ours are those of this process and of the named ones that live."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]][:_GUEST]
    total = sum(ticks)
    ours = sum(_ticks_of(process_id) for process_id in (os.getpid(), *process_ids))
    return Reading(total, total - ticks[_IDLE] - ticks[_IOWAIT], ours)


def share_of_others(before: Reading, after: Reading) -> float:
    """Between two readings, 0 to 1."""
    taken = (after.taken - before.taken) - (after.ours - before.ours)
    return max(0.0, taken / max(1, after.total - before.total))


def least_disturbed(measure: Callable[[], Window[T]], wanted: int) -> list[Window[T]]:
    """Windows by rising disturbance, as many as were wanted: measured until so many were quiet, or often enough."""
    windows: list[Window[T]] = []
    while len(windows) < MAX_WINDOWS and sum(window.others_share <= MAX_SHARE for window in windows) < wanted:
        windows.append(measure())
    return sorted(windows, key=lambda window: window.others_share)[:wanted]


def _ticks_of(process_id: int) -> int:
    try:
        words = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0
    return int(words[11]) + int(words[12])  # user, system
