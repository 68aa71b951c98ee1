"""What the text side must hear: opens, token deltas and closes, gathered into one TokenBatch a step.

Knows what was said, not why. Invariant: each sequence is opened once, closed once, and has no delta after its close.
"""

from array import array

from services.scheduler.core.sequence import Run, Sequence
from services.wire import columns
from services.wire.messages import (
    Close,
    Deltas,
    FailureReason,
    FinishReason,
    Logprobs,
    Open,
    Start,
    Timings,
    TokenBatch,
)

_ONE, _NONE = columns.pack([1]), columns.pack([0])  # a delta's count of tokens


class Outbox:
    """`last_number` is the number of the last batch taken; the first is 1."""

    def __init__(self) -> None:
        self.last_number = 0
        self._opens: list[Open] = []
        self._deltas: Deltas | None = None
        self._closes: list[Close] = []
        self._starts: list[Start] = []

    def open(self, sequence: Sequence) -> None:
        self._opens.append(Open(sequence.key, sequence.num_prompt_tokens, sequence.stopping, sequence.output))

    def start(self, sequence: Sequence, now: int) -> None:
        """The sequence's first token is among the deltas."""
        queue_us, prefill_us, _ = _stretches(sequence, now)
        self._starts.append(Start(sequence.key, sequence.num_cached_tokens, queue_us, prefill_us))

    def deliver(
        self,
        runs: list[Run],
        tokens: "array[int]",
        logprobs: Logprobs | None,
        prompts: Logprobs | None,
        silent: list[Run],
    ) -> None:
        """The new token of each run's sequence; at most once a batch. silent: they have no token, but are scored in
        prompts; behind the others."""
        assert self._deltas is None, "two steps in one TokenBatch"
        if runs or silent:
            keys = tuple([run.key for run in (runs + silent if silent else runs)])
            counts = _ONE * len(runs) + _NONE * len(silent)
            self._deltas = Deltas(keys, counts, tokens.tobytes(), logprobs, prompts)

    def close(
        self,
        sequence: Sequence,
        now: int,
        ending: tuple[FinishReason, FailureReason, str],
        retry_after_ms: int | None = None,
        matched_token: int | None = None,
    ) -> None:
        reason, failure, detail = ending
        self._closes.append(
            Close(
                sequence=sequence.key,
                reason=reason,
                failure=failure,
                detail=detail,
                num_output_tokens=sequence.num_output_tokens,
                num_cached_tokens=sequence.num_cached_tokens,
                matched_token=matched_token,
                timings=Timings(*_stretches(sequence, now)),
                retry_after_ms=retry_after_ms,
            )
        )

    def take(self) -> TokenBatch | None:
        """The batch gathered since the last one, or None when there is nothing to say."""
        if not (self._opens or self._closes or self._deltas):
            return None
        self.last_number += 1
        batch = TokenBatch(self.last_number, tuple(self._opens), self._deltas, tuple(self._closes), tuple(self._starts))
        self._opens, self._deltas, self._closes, self._starts = [], None, [], []
        return batch


def _stretches(sequence: Sequence, now: int) -> tuple[int, int, int]:
    """Microseconds from submit to the first plan, from there to the first token, and from there until now; of a stretch
    that is still going on, until now."""
    planned = sequence.t_first_planned or now
    token = sequence.t_first_token or now
    return (planned - sequence.t_submitted) // 1000, (token - planned) // 1000, (now - token) // 1000
