"""The waiting queue: sequences without a run, in the policy's order.

Holds new, preempted, swapped and interrupted sequences alike; whoever returns takes the place its order gives it, so
nobody loses its turn. Groups (tenants) are ranked anew at every look, their members are sorted once. Knows no blocks
and no budget.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from services.scheduler.core.policy import Policy
from services.scheduler.core.sequence import Sequence


class WaitingQueue:
    """A group that is empty is forgotten."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._groups: dict[str, list[Sequence]] = {}
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        """Every member, group by group."""
        for members in self._groups.values():
            yield from members

    def candidates(self) -> Iterator[Sequence]:
        """Members in order. One that is taken out while it is looked at makes room for the next of its group; one that
        stays is passed over. Ranks are read at each step, so serving one group lets another go first."""
        positions: dict[str, int] = {}
        while (group := self._first(positions)) is not None:
            position = positions.get(group, 0)
            head = self._groups[group][position]
            yield head
            members = self._groups.get(group, [])
            if position < len(members) and members[position] is head:
                positions[group] = position + 1

    def _first(self, positions: dict[str, int]) -> str | None:
        """The group whose next member goes before those of the others; None when all have been looked at."""
        groups = self._groups
        if len(groups) == 1:
            ((group, members),) = groups.items()
            return group if positions.get(group, 0) < len(members) else None
        heads = [members[i] for group, members in groups.items() if (i := positions.get(group, 0)) < len(members)]
        return self._policy.group(min(heads, key=self._policy.precedence)) if heads else None

    def add(self, sequence: Sequence) -> None:
        members = self._groups.setdefault(self._policy.group(sequence), [])
        insort(members, sequence, key=self._policy.order)
        self._num_waiting += 1

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out; it must be there."""
        group = self._policy.group(sequence)
        members = self._groups[group]
        is_first = members[0] is sequence  # as whoever joins is
        index = 0 if is_first else bisect_left(members, self._policy.order(sequence), key=self._policy.order)
        assert members[index] is sequence, "the sequence is not waiting"
        del members[index]
        if not members:
            del self._groups[group]
        self._num_waiting -= 1
