"""Who goes first, and who gives way: pure functions over sequences and runs.

A policy is one function, the order of a sequence (smaller goes first); everything else follows from it. Orders are
unique, so there is never a tie to break.
"""

from collections.abc import Callable, Iterable

from services.scheduler.core.blocks import BlockPool
from services.scheduler.core.sequence import Run, Sequence
from services.scheduler.core.waiting import Order

Policy = Callable[[Sequence], Order]


def fcfs(sequence: Sequence) -> Order:
    """First come, first served."""
    return (sequence.arrival,)


def choose_victim(
    runs: Iterable[Run], order: Policy, has_credit: Callable[[Sequence], bool], pool: BlockPool
) -> Run | None:
    """The run to preempt: one whose reader is silent before all others, then the one that goes last.

    A run that would give no block back is no victim: preempting it would gain nothing.
    """
    candidates = [run for run in runs if pool.num_reclaimable(run.blocks)]
    if not candidates:
        return None
    return max(candidates, key=lambda run: (not has_credit(run.sequence), order(run.sequence)))
