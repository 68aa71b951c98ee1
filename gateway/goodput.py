"""Goodput: the share of calls that met their latency targets, the number an operator is held to.

A call meets the first target when its first token came in time, the second when the mean time between its tokens was
short enough (a call of one token does), and is good when it met both. Calls that a client spoilt (a wrong request, a
cancel) are not judged; calls that were refused or failed for any other reason are, and met nothing. Pure.
"""

from collections import deque
from dataclasses import dataclass, field

from gateway.accounts import OK, Record

# Ends that say nothing about how well calls are served.
SPOILT = frozenset(
    {
        *("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "CANCELLED"),
        *("UNAUTHENTICATED", "PERMISSION_DENIED"),
    }
)
TTFT, ITL, BOTH = "ttft", "itl", "both"


@dataclass
class Goodput:
    """Targets in seconds, 0 for none; `window` is how many of the last calls the ratio is over."""

    ttft_s: float
    itl_s: float
    window: int
    num_judged: int = 0
    num_good: dict[str, int] = field(default_factory=lambda: {TTFT: 0, ITL: 0, BOTH: 0})
    _last: deque[bool] = field(init=False)

    def __post_init__(self) -> None:
        self._last = deque(maxlen=self.window)

    def judge(self, record: Record) -> None:
        """One more generation call that is over."""
        if record.code in SPOILT:
            return
        met_ttft, met_itl = self._met(record) if record.code == OK else (False, False)
        self.num_judged += 1
        self.num_good[TTFT] += met_ttft
        self.num_good[ITL] += met_itl
        self.num_good[BOTH] += met_ttft and met_itl
        self._last.append(met_ttft and met_itl)

    def ratio(self) -> float | None:
        """The share of good ones among the last calls; None before the first."""
        return sum(self._last) / len(self._last) if self._last else None

    def _met(self, record: Record) -> tuple[bool, bool]:
        ttft_s = record.ttft_s()
        itl_s = None if record.generation is None else record.generation.inter_token_s()
        met_ttft = not self.ttft_s or (ttft_s is not None and ttft_s <= self.ttft_s)
        met_itl = not self.itl_s or itl_s is None or itl_s <= self.itl_s
        return met_ttft, met_itl
