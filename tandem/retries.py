"""Another try: which failures deserve one, when, and how often. Pure but for the clock and the chance it is given.

A server that says when to come back (google.rpc.RetryInfo) is believed: never earlier, a little later, so that those
who were refused together do not return together. What is only unavailable is tried again with growing waits. The
timeout of a call spans all its attempts: a wait that would outlast it is not begun. A stream that has brought anything
is never asked for again; its first message is where this page no longer applies.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tandem.errors import TandemError, Unavailable


@dataclass(frozen=True)
class Retries:
    """How often a call is tried, and how long is waited between. Seconds.

    max_attempts: at least 1, the first try included. first_wait_s doubles with each attempt where the server says
    nothing. max_wait_s: a server that asks for more patience than this is not waited for. jitter: the part of a wait
    that chance may add.
    """

    max_attempts: int = 4
    first_wait_s: float = 0.1
    max_wait_s: float = 30.0
    jitter: float = 0.25

    def wait_s(self, error: TandemError, attempt: int, chance: float) -> float | None:
        """How long to wait after the attempt with this number, from 1; None: no more. 0 <= chance < 1."""
        told = error.retry_after_s
        if attempt >= self.max_attempts or (told is None and not isinstance(error, Unavailable)):
            return None
        if told is not None and told > self.max_wait_s:
            return None
        wait = min(self.first_wait_s * 2 ** (attempt - 1), self.max_wait_s) if told is None else told
        return wait * (1 + self.jitter * chance)


DEFAULT_RETRIES = Retries()
NO_RETRIES = Retries(max_attempts=1)


class Attempts:
    """The attempts of one call. timeout_s: of all of them together; None for ever."""

    def __init__(
        self,
        retries: Retries,
        timeout_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._retries = retries
        self._clock = clock
        self._chance = chance
        self._deadline = None if timeout_s is None else clock() + timeout_s
        self._number = 1

    @property
    def remaining_s(self) -> float | None:
        """What is left for the attempt that begins now."""
        return None if self._deadline is None else max(self._deadline - self._clock(), 0.0)

    def wait_s(self, error: TandemError) -> float | None:
        """How long to wait before the next attempt; None: the error stands."""
        wait = self._retries.wait_s(error, self._number, self._chance())
        remaining = self.remaining_s
        if wait is None or (remaining is not None and wait >= remaining):
            return None
        self._number += 1
        return wait
