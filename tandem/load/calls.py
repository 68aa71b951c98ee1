"""What a client saw of one call, on its own clock. Times are seconds from the start of the run."""

from dataclasses import dataclass, field

OK = "OK"


@dataclass(slots=True)
class Call:
    """One request and its answer. due: when it should have been sent; sent: when it was. status: OK, or what went
    wrong. Each message that brought tokens has a time and a count; num_output_tokens is the server's own count where
    it gives one."""

    due: float
    sent: float
    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    ended: float = 0.0
    status: str = ""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0

    def bring(self, time: float, count: int) -> None:
        """A message with so many tokens arrived."""
        self.times.append(time)
        self.counts.append(count)

    @property
    def is_ok(self) -> bool:
        return self.status == OK

    @property
    def ttft(self) -> float:
        """From the sending to the first token; needs a token."""
        return self.times[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Between one message with tokens and the next: what a reader waits. One that brings several counts once, so
        that a server gains nothing here by holding tokens back."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]

    @property
    def time_per_token(self) -> float:
        """Mean over the tokens after the first message."""
        num_later = self.num_output_tokens - self.counts[0]
        return (self.times[-1] - self.times[0]) / num_later if num_later > 0 else 0.0
