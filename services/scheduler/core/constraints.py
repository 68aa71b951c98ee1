"""The constraints of live requests: which the executor has been asked to prepare, and which are ready.

Compiling takes time and must hold nobody up, so the executor is asked as soon as a request is here, at most
max_preparing at once and in the order of arrival; its sequences are passed over in the queue until the answer comes.
Equal constraints of several requests are one. A new executor knows none of them: all are asked again, under new
numbers, so that a late answer of the dead one is nobody's. One that was being compiled when an executor died is asked
alone, and fails its requests when that executor dies too.
"""

from services.scheduler.core.sequence import Sequence
from services.wire.messages import Constraint, ConstraintMessage, Prepare, Prepared, Release

BLAME_FATAL = 2  # executors that died while a constraint was being compiled, after which it is not tried again


class Record:
    """One constraint. number: its Prepare, 0 while it has not been asked for. sequences: all that follow it; none are
    left of one whose answer nobody wants any more."""

    __slots__ = ("blame", "constraint", "is_ready", "number", "sequences")

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self.number = 0
        self.is_ready = False
        self.sequences: dict[Sequence, None] = {}
        self.blame = 0


class Constraints:
    """By content, in order of arrival. Invariant: a record has a sequence; one that is ready has a number."""

    def __init__(self, max_preparing: int) -> None:
        self._max_preparing = max_preparing
        self._records: dict[Constraint, Record] = {}
        self._asked: dict[int, Record] = {}  # by number, not answered
        self._unasked: dict[Record, None] = {}
        self._released: list[int] = []
        self._last_number = 0

    def follow(self, sequence: Sequence, constraint: Constraint) -> None:
        """A sequence has come that follows a constraint."""
        record = self._records.get(constraint)
        if record is None:
            record = self._records[constraint] = Record(constraint)
            self._unasked[record] = None
        record.sequences[sequence] = None
        sequence.constraint = constraint
        sequence.needs_history = True

    def leave(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        if sequence.constraint is None:
            return
        record = self._records[sequence.constraint]
        del record.sequences[sequence]
        if record.sequences:
            return
        del self._records[record.constraint]
        self._unasked.pop(record, None)
        if record.is_ready:
            self._released.append(record.number)

    def number(self, sequence: Sequence) -> int:
        """What a slot of this sequence is told: the number of its constraint, which is ready; 0 for none."""
        if sequence.constraint is None:
            return 0
        record = self._records[sequence.constraint]
        assert record.is_ready, "a sequence joined before its constraint was ready"
        return record.number

    def is_ready(self, sequence: Sequence) -> bool:
        """Whether the sequence may join, as far as its constraint goes."""
        return sequence.constraint is None or self._records[sequence.constraint].is_ready

    def answer(self, prepared: Prepared) -> list[Sequence]:
        """Take in an answer; one to no question of ours is nothing. Returns the sequences that it fails."""
        record = self._asked.pop(prepared.number, None)
        if record is None:
            return []
        if prepared.detail:
            return list(record.sequences)
        record.is_ready = True
        record.blame = 0
        if not record.sequences:
            self._released.append(record.number)
        return []

    def take_messages(self) -> list[ConstraintMessage]:
        """What the executor, which must be there, is to be told now."""
        messages: list[ConstraintMessage] = [Release(number) for number in self._released]
        self._released.clear()
        while (record := self._next()) is not None:
            del self._unasked[record]
            self._last_number += 1
            record.number = self._last_number
            self._asked[record.number] = record
            messages.append(Prepare(record.number, record.constraint))
        return messages

    def _next(self) -> Record | None:
        """The next to ask for, if it is time: those with blame first, each alone."""
        if len(self._asked) >= self._max_preparing or any(record.blame for record in self._asked.values()):
            return None
        blamed = next((record for record in self._unasked if record.blame), None)
        if blamed is not None:
            return None if self._asked else blamed
        return next(iter(self._unasked), None)

    def lose_executor(self) -> list[Sequence]:
        """The executor is gone, with all that was prepared. Returns the sequences that no other is asked to try."""
        lost: list[Sequence] = []
        for record in self._asked.values():
            record.blame += 1
            if record.blame >= BLAME_FATAL:
                lost.extend(record.sequences)
        self._asked.clear()
        self._released.clear()
        for record in self._records.values():
            record.number = 0
            record.is_ready = False
        self._unasked = dict.fromkeys(self._records.values())
        return lost

    def records(self) -> list[Record]:
        """All of them, for the invariants."""
        return list(self._records.values())
