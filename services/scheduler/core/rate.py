"""How quickly requests end while there are any, measured over the last of them, and the retry hint that follows."""

from collections import deque

_WINDOW = 64  # endings the rate is measured over
_MIN_RETRY_MS, _MAX_RETRY_MS = 100, 30_000


class DrainRate:
    """Times are the shell's clock, nanoseconds."""

    def __init__(self) -> None:
        self._ends: deque[int] = deque(maxlen=_WINDOW)

    def note(self, now: int) -> None:
        """A request ended."""
        self._ends.append(now)

    def resume(self, now: int) -> None:
        """A request has come where there was none: the time since the last end says nothing."""
        if self._ends:
            idle = now - self._ends[-1]
            self._ends = deque([end + idle for end in self._ends], maxlen=_WINDOW)

    def per_second(self, now: int) -> float:
        """Requests ended per second over the window up to now; 0.0 until two have ended."""
        if len(self._ends) < 2 or now <= self._ends[0]:
            return 0.0
        return len(self._ends) * 1e9 / (now - self._ends[0])

    def retry_after_ms(self, now: int, num_waiting: int) -> int:
        """When a place in a full queue of so many may be free: a tenth of the time to drain it, within bounds."""
        rate = self.per_second(now)
        if rate == 0.0:
            return 1000
        return min(_MAX_RETRY_MS, max(_MIN_RETRY_MS, round(num_waiting / rate * 100)))
