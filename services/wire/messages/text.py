"""Scheduler -> detokenizer -> gateway, and what the detokenizer answers: tokens, text, endings, credit."""

from msgspec import Struct

from services.wire.messages.requests import FailureReason, FinishReason, Output, SequenceKey, Stopping
from services.wire.messages.steps import Logprobs

# scheduler -> detokenizer -----------------------------------------------------------------------------------------


class Open(Struct, frozen=True, array_like=True, gc=False):
    """Precedes any token of a sequence."""

    sequence: SequenceKey
    num_prompt_tokens: int
    stopping: Stopping
    output: Output


class Deltas(Struct, frozen=True, array_like=True, gc=False):
    """New tokens, one entry a sequence. counts: column, tokens of each entry; tokens: column, flat."""

    sequences: tuple[SequenceKey, ...]
    counts: bytes
    tokens: bytes
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None


class Timings(Struct, frozen=True, array_like=True, gc=False):
    """Microseconds: submit to first planned, first planned to first token, first token to the end."""

    queue_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0


class Start(Struct, frozen=True, array_like=True, gc=False):
    """A sequence has its first token: what an end by a stop string, which leaves before the close, has to tell."""

    sequence: SequenceKey
    num_cached_tokens: int
    queue_us: int
    prefill_us: int


class Close(Struct, frozen=True, array_like=True, gc=False):
    """The scheduler's last mention of a sequence. matched_token: the stop id that ended it."""

    sequence: SequenceKey
    reason: FinishReason
    failure: FailureReason = FailureReason.NONE
    detail: str = ""
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    matched_token: int | None = None
    timings: Timings = Timings()
    retry_after_ms: int | None = None


class TokenBatch(Struct, frozen=True, array_like=True, gc=False, tag=0):
    """What one step means for the text side: opens, starts, deltas, closes. `number` rises by one each."""

    number: int
    opens: tuple[Open, ...] = ()
    deltas: Deltas | None = None
    closes: tuple[Close, ...] = ()
    starts: tuple[Start, ...] = ()  # read before the deltas


class SetDetokenizerLog(Struct, frozen=True, array_like=True, gc=False, tag=1):
    """An operator's wish, passed on: the detokenizer logs from this level on."""

    level: str


TokenMessage = TokenBatch | SetDetokenizerLog


# detokenizer -> gateway -------------------------------------------------------------------------------------------


class Candidate(Struct, frozen=True, array_like=True, gc=False):
    """One candidate of a position: its text is whole characters, or None and then `token_bytes` tells."""

    token_id: int
    logprob: float
    rank: int
    token_bytes: bytes


class TokenLogprobs(Struct, frozen=True, array_like=True, gc=False):
    """The candidates of one token: the chosen one first."""

    candidates: tuple[Candidate, ...]


class TextDelta(Struct, frozen=True, array_like=True, gc=False):
    """New text of a sequence, never part of a character, and the tokens read for it (column)."""

    request: str
    incarnation: int
    index: int
    text: str
    tokens: bytes
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()


class TextEnd(Struct, frozen=True, array_like=True, gc=False):
    """The one terminal event of a sequence. At most one of matched_stop and matched_token is set."""

    request: str
    incarnation: int
    index: int
    reason: FinishReason
    failure: FailureReason
    detail: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    timings: Timings
    matched_stop: str | None = None
    matched_token: int | None = None
    retry_after_ms: int | None = None


class TextBatch(Struct, frozen=True, array_like=True, gc=False, tag=0):
    """One TokenBatch (its number) as one gateway sees it: deltas, then ends."""

    number: int
    deltas: tuple[TextDelta, ...] = ()
    ends: tuple[TextEnd, ...] = ()


TextMessage = TextBatch


# detokenizer -> scheduler -----------------------------------------------------------------------------------------


class StopHit(Struct, frozen=True, array_like=True, gc=False, tag=0):
    """A stop string completed at output token token_index (0-based): the sequence is over for its client."""

    sequence: SequenceKey
    token_index: int


class Credit(Struct, frozen=True, array_like=True, gc=False, tag=1):
    """Cumulative: the gateway's outlet has taken all that TokenBatches up to number `seq` meant for it."""

    gateway: str
    seq: int


FeedbackMessage = StopHit | Credit
