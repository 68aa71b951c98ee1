"""The waiting queue: sequences without a run, in the policy's order.

Holds new, preempted and interrupted sequences alike; whoever returns takes the place its order gives it, so nobody
loses its turn. Knows no blocks and no budget.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from services.scheduler.core.sequence import Sequence

Order = tuple[int, ...]


class WaitingQueue:
    """Sorted by order(sequence), which must be unique and must not change while the sequence waits."""

    def __init__(self, order: Callable[[Sequence], Order]) -> None:
        self._order = order
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __getitem__(self, index: int) -> Sequence:
        return self._sequences[index]

    def add(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=self._order)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out; it must be there."""
        index = bisect_left(self._sequences, self._order(sequence), key=self._order)
        assert self._sequences[index] is sequence, "the sequence is not waiting"
        del self._sequences[index]
