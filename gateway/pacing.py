"""Pacing: how many steps' tokens one message of a stream gathers, so that many streams cost little processor time.

A message costs about as much as the tokens in it cost together, so what is spared is messages. A Pacer sees every
TextBatch: how often they come and how many streams each holds. As long as one message a token stays within
max_messages_per_s nothing is held back; beyond it messages gather `hold` batches each, as many as the rate asks for
and never more than fit in max_delay_s. A Pace is one call's part in it. Knows no gRPC. Invariants: the first token is
never held; nothing is held longer than max_delay_s, come what may.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Protocol

# How much the newest batch counts in what is known of rate and width.
NEWEST = 0.1
# A pause longer than this says nothing about the rhythm of steps.
PAUSE_S = 0.5


class Holder(Protocol):
    """Whatever gathers tokens: a mailbox."""

    def ripen(self, since: int) -> None:
        """Send what has been held since this batch; nothing when that has been sent."""


class Pacer:
    """The rhythm of one gateway. clock: monotonic seconds."""

    def __init__(self, max_delay_s: float, max_messages_per_s: float, clock: Callable[[], float]) -> None:
        self.max_delay_s = max_delay_s
        self.number = 0  # batches so far
        self.hold = 1  # batches that one message gathers
        self._max_messages_per_s = max_messages_per_s
        self._then = clock()
        self._interval_s = 1.0
        self._width = 0.0
        self._held: dict[float, list[Holder]] = {}  # who holds something since this batch, by how long it may

    def batch(self, now: float, num_streams: int) -> None:
        """A batch has come, with something for so many streams."""
        self.number += 1
        self._held = {}
        gap_s, self._then = now - self._then, now
        if gap_s < PAUSE_S:
            self._interval_s += NEWEST * (gap_s - self._interval_s)
        self._width += NEWEST * (num_streams - self._width)
        wanted = self._width / max(self._interval_s * self._max_messages_per_s, 1e-9)
        self.hold = max(1, min(math.ceil(wanted), self.within(self.max_delay_s)))

    def within(self, delay_s: float) -> int:
        """How many batches come before the first of them is held too long; at least one."""
        return int(delay_s / max(self._interval_s, 1e-6)) + 1

    def remind(self, holder: Holder, delay_s: float) -> None:
        """See to it that what this holder holds since this batch is sent when delay_s has passed."""
        held = self._held.get(delay_s)
        if held is None:
            # One timer for all of a batch that may wait equally long: it is set when the first of them begins to.
            held = self._held[delay_s] = []
            asyncio.get_running_loop().call_later(delay_s, _ripen, held, self.number)
        held.append(holder)


def _ripen(held: list[Holder], since: int) -> None:
    for holder in held:
        holder.ripen(since)


class Pace:
    """How one call's messages gather. max_tokens and max_delay_s: the client's own bounds, None for none.

    order: any number; calls of different orders send in different batches.
    """

    __slots__ = ("_has_begun", "_max_delay_s", "_order", "_pacer", "max_tokens", "since")

    def __init__(self, pacer: Pacer, order: int, max_tokens: int | None, max_delay_s: float | None) -> None:
        self._pacer = pacer
        self._order = order
        self._max_delay_s = pacer.max_delay_s if max_delay_s is None else min(max_delay_s, pacer.max_delay_s)
        self._has_begun = False
        self.max_tokens = max_tokens  # of a message
        self.since: int | None = None  # the batch since which something is held

    def is_due(self, holder: Holder, num_tokens: int) -> bool:
        """Whether what lies in the holder, so many tokens of one sequence, is to be sent now that more has come."""
        pacer = self._pacer
        hold = pacer.hold
        if not self._has_begun:
            self._has_begun = True
            return True
        if self._max_delay_s < pacer.max_delay_s:
            hold = min(hold, pacer.within(self._max_delay_s)) if self._max_delay_s else 1
        if hold == 1:
            return True
        if self.since is None:
            self.since = pacer.number
            pacer.remind(holder, self._max_delay_s)
        if self.max_tokens is not None and num_tokens >= self.max_tokens:
            return True
        # Once in `hold` batches, whichever of them has this call's turn; turns move when `hold` does, and then a
        # message goes as soon as it has gathered that many.
        return (pacer.number + self._order) % hold == 0 or pacer.number - self.since + 1 >= hold
