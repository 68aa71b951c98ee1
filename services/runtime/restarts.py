"""Whether and when a dead executor is started again, as a pure state machine.

In come deaths and the time; `due` is when the next start is. Knows no process and no clock (supervisor.py). Rules: each
pause is twice as long as the one before, up to a longest; more than max_restarts within window_s end the server, and so
does a death before any executor of this server was ready, since the next would fare no better.
"""

import math
from collections import deque

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


class Restarts:
    """The restarts of one server's executor."""

    def __init__(self, max_restarts: int, window_s: float) -> None:
        self._max_restarts = max_restarts
        self._window_s = window_s
        self.due = math.inf
        self._pause_s = FIRST_PAUSE_S
        self._deaths: deque[float] = deque()  # those in the window that led to a restart
        self._was_ready = False

    def died(self, now: float, was_ready: bool) -> str:
        """An executor has died: another is due, or there is a reason why none will be."""
        self._was_ready |= was_ready
        while self._deaths and now - self._deaths[0] >= self._window_s:
            self._deaths.popleft()
        if not self._was_ready:
            return "it was never ready"
        if len(self._deaths) >= self._max_restarts:
            return f"no more than {self._max_restarts} restarts in {self._window_s:g} s are allowed"
        if not self._deaths:
            self._pause_s = FIRST_PAUSE_S
        self._deaths.append(now)
        self.due = now + self._pause_s
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        return ""

    def take_due(self, now: float) -> bool:
        """Whether a start is due; it is no more, once told."""
        if now < self.due:
            return False
        self.due = math.inf
        return True
