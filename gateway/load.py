"""The engine's load as one gateway follows it: the last word, and how quickly totals rise.

Pure: fed with Load messages, whose own clock tells the time between two of them. Knows no link.
"""

from dataclasses import dataclass

from services.wire.messages import Load

# Rates over less than this say more about single steps than about the load.
MIN_SPAN_NS = 900_000_000


@dataclass(frozen=True)
class Rates:
    """What rose how quickly between two loads, per second. hit_rate: None where nothing was looked up."""

    output_tokens: float
    prompt_tokens: float
    steps: float
    hit_rate: float | None


def rates(before: Load, after: Load) -> Rates:
    """All zero where no time has passed."""
    span_s = (after.time_ns - before.time_ns) / 1e9
    if span_s <= 0:
        return Rates(0.0, 0.0, 0.0, None)
    num_looked_up = after.num_looked_up_tokens - before.num_looked_up_tokens
    num_cached = after.num_cached_tokens - before.num_cached_tokens
    return Rates(
        output_tokens=(after.num_output_tokens - before.num_output_tokens) / span_s,
        prompt_tokens=(after.num_prompt_tokens - before.num_prompt_tokens) / span_s,
        steps=(after.num_steps - before.num_steps) / span_s,
        hit_rate=num_cached / num_looked_up if num_looked_up else None,
    )


def kv_usage(load: Load) -> float:
    """The share of KV blocks in use, 0 to 1; what is cached and held by nobody is free."""
    return 1.0 - load.num_free_blocks / load.num_blocks if load.num_blocks else 0.0


class LoadHistory:
    """The last load, and an older one to hold it against."""

    def __init__(self) -> None:
        self.last: Load | None = None
        self._mark: Load | None = None
        self._older_mark: Load | None = None

    def note(self, load: Load) -> None:
        """A new load, not older than the last."""
        self.last = load
        if self._mark is None or load.time_ns - self._mark.time_ns >= MIN_SPAN_NS:
            self._older_mark, self._mark = self._mark or load, load

    def baseline(self) -> Load | None:
        """The load to measure the last one against: about a second older, where there is such a one."""
        return self._older_mark

    def rates(self) -> Rates:
        """Over about the last second."""
        if self.last is None or self._older_mark is None:
            return Rates(0.0, 0.0, 0.0, None)
        return rates(self._older_mark, self.last)
