"""One sequence on its way to text: from its open, over its tokens, to its one end.

Flows: token ids in; text out, and a TextEnd when a stop string completes or the scheduler closes. Whichever comes first
is the end; what comes after a stop string - tokens still in flight, then the close - is swallowed. Knows nothing of
batches and links. Invariant: exactly one TextEnd a stream; no text after it.
"""

from collections.abc import Sequence

from services.detokenizer.incremental import IncrementalDecoder, TokenTable
from services.detokenizer.stops import StopMatcher
from services.wire.messages import Close, FailureReason, FinishReason, Open, Start, TextEnd, Timings, TokenLogprobs


class Stream:
    """`is_over`: its end was sent, and only the scheduler's close is awaited. `num_tokens`: read so far."""

    __slots__ = (
        "_decoder",
        "_matcher",
        "_min_tokens",
        "_num_prompt_tokens",
        "_start",
        "is_over",
        "key",
        "num_tokens",
        "prompt_logprobs",
    )

    def __init__(self, opened: Open, table: TokenTable) -> None:
        stopping = opened.stopping
        self.key = opened.sequence
        self.is_over = False
        self.num_tokens = 0
        self.prompt_logprobs: list[TokenLogprobs | None] = []  # kept for the first message with a token
        self._num_prompt_tokens = opened.num_prompt_tokens
        self._start = Start(opened.sequence, 0, 0, 0)
        self._decoder = IncrementalDecoder(table)
        self._min_tokens = stopping.min_tokens
        self._matcher = StopMatcher(stopping.stop_strings, stopping.include_stop) if stopping.stop_strings else None

    def begin(self, start: Start) -> None:
        """The first token is there, and with it what the scheduler knows by then."""
        self._start = start

    def read(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """The text that these tokens complete, and how many were read: none behind one that completes a stop string."""
        decoder = self._decoder
        if self._matcher is None:
            self.num_tokens += len(token_ids)
            if len(token_ids) == 1:
                return decoder.feed(token_ids[0]), 1
            return "".join([decoder.feed(token_id) for token_id in token_ids]), len(token_ids)
        num_before, text = self.num_tokens, ""
        for token_id in token_ids:
            self.num_tokens += 1
            text += self._match(decoder.feed(token_id))
            if self.is_over:
                break
        return text, self.num_tokens - num_before

    def take_prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...]:
        """What was gathered of the prompt, once."""
        taken = tuple(self.prompt_logprobs)
        self.prompt_logprobs.clear()
        return taken

    def end_by_stop(self) -> TextEnd:
        """The end that a stop string made. It does not wait for the close, and so tells no time of decoding."""
        assert self._matcher is not None and self._matcher.matched is not None
        start = self._start
        timings = Timings(queue_us=start.queue_us, prefill_us=start.prefill_us)
        close = Close(self.key, FinishReason.STOP, num_cached_tokens=start.num_cached_tokens, timings=timings)
        return self._end(close, self._matcher.matched)

    def close(self, close: Close) -> tuple[str, TextEnd]:
        """The last text, which no further token can change, and the end as the scheduler has it.

        The last text may complete a stop string too: a character that stays incomplete is U+FFFD from now on.
        """
        assert not self.is_over, "a second end"
        text = self._decoder.flush()
        if self._matcher is None:
            self.is_over = True
            return text, self._end(close, None)
        text = self._match(text)
        if not self.is_over:
            self.is_over = True
            return text + self._matcher.flush(), self._end(close, None)
        return text, self._end(close, self._matcher.matched)

    def _match(self, text: str) -> str:
        assert self._matcher is not None
        text = self._matcher.feed(text, may_stop=self.num_tokens > self._min_tokens)
        self.is_over = self._matcher.matched is not None
        return text

    def _end(self, close: Close, matched_stop: str | None) -> TextEnd:
        by_stop = matched_stop is not None
        return TextEnd(
            request=self.key.request,
            incarnation=self.key.incarnation,
            index=self.key.index,
            reason=FinishReason.STOP if by_stop else close.reason,
            failure=FailureReason.NONE if by_stop else close.failure,
            detail="" if by_stop else close.detail,
            num_prompt_tokens=self._num_prompt_tokens,
            num_output_tokens=self.num_tokens if by_stop else close.num_output_tokens,
            num_cached_tokens=close.num_cached_tokens,
            timings=close.timings,
            matched_stop=matched_stop,
            matched_token=None if by_stop else close.matched_token,
            retry_after_ms=None if by_stop else close.retry_after_ms,
        )
