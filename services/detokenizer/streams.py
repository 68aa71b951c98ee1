"""Every open sequence, and what one TokenBatch means for each gateway: the detokenizer without its links.

Flows: a TokenBatch in; at most one TextBatch a gateway and any number of StopHits out. Invariants: each open is
answered by exactly one TextEnd; a stream lives until the scheduler's close, so the map is empty when nothing runs; a
delta or close of a sequence that is not open, and a second open, are bugs of the scheduler and loud.
"""

from dataclasses import dataclass

from services.detokenizer import candidates
from services.detokenizer.incremental import Tables
from services.detokenizer.stream import Stream
from services.wire import columns
from services.wire.messages import (
    Close,
    Deltas,
    Open,
    SequenceKey,
    StopHit,
    TextBatch,
    TextDelta,
    TextEnd,
    TokenBatch,
)

_TOKEN_BYTES = 4  # of one entry of a column


@dataclass(frozen=True)
class Outcome:
    """texts: by gateway, none empty. stop_hits: sequences that the scheduler must end."""

    texts: dict[str, TextBatch]
    stop_hits: list[StopHit]


class Streams:
    """The map of open sequences; its length counts those whose close has not come."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._streams: dict[SequenceKey, Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def absorb(self, batch: TokenBatch) -> Outcome:
        """Take in opens, starts, deltas, closes."""
        drafts: dict[str, _Draft] = {}
        hits: list[StopHit] = []
        for opened in batch.opens:
            self._open(opened)
        for start in batch.starts:
            self._find(start.sequence).begin(start)
        if batch.deltas is not None:
            self._read(batch.deltas, drafts, hits)
        for close in batch.closes:
            self._close(close, drafts)
        texts = {gateway: TextBatch(batch.number, tuple(d.deltas), tuple(d.ends)) for gateway, d in drafts.items()}
        return Outcome(texts, hits)

    def _open(self, opened: Open) -> None:
        assert opened.sequence not in self._streams, f"{opened.sequence} is opened twice"
        skips = opened.output.skip_special_tokens
        table = self._tables.skipping if skips else self._tables.showing
        self._streams[opened.sequence] = Stream(opened, table)

    def _read(self, deltas: Deltas, drafts: "_Drafts", hits: list[StopHit]) -> None:
        tokens, counts = columns.unpack(deltas.tokens), columns.unpack(deltas.counts)
        assert len(counts) == len(deltas.sequences) and sum(counts) == len(tokens), "deltas of unequal columns"
        assert not tokens or min(tokens) >= 0, "a negative token id"
        logprobs = candidates.by_delta(deltas.logprobs, self._tables.token_bytes)
        prompts = candidates.by_delta(deltas.prompt_logprobs, self._tables.token_bytes)
        start = 0
        for order, (key, count) in enumerate(zip(deltas.sequences, counts, strict=True)):
            stream = self._find(key)
            if prompts:
                stream.prompt_logprobs += prompts.get(order, ())
            if count and not stream.is_over:
                text, num_read = stream.read(tokens[start : start + count])
                column = deltas.tokens[_TOKEN_BYTES * start : _TOKEN_BYTES * (start + num_read)]
                draft = _draft_of(drafts, key.gateway)
                draft.deltas.append(
                    TextDelta(
                        key.request,
                        key.incarnation,
                        key.index,
                        text,
                        column,
                        candidates.of_outputs(logprobs, order, num_read) if logprobs else (),
                        stream.take_prompt_logprobs() if stream.prompt_logprobs else (),
                    )
                )
                if stream.is_over:
                    draft.ends.append(stream.end_by_stop())
                    hits.append(StopHit(key, stream.num_tokens - 1))
            start += count

    def _close(self, close: Close, drafts: "_Drafts") -> None:
        key = close.sequence
        stream = self._find(key)
        del self._streams[key]
        if stream.is_over:
            return
        text, end = stream.close(close)
        draft = _draft_of(drafts, key.gateway)
        if text:
            draft.deltas.append(TextDelta(key.request, key.incarnation, key.index, text, columns.EMPTY))
        draft.ends.append(end)

    def _find(self, key: SequenceKey) -> Stream:
        stream = self._streams.get(key)
        assert stream is not None, f"{key} is not open"
        return stream


class _Draft:
    """A TextBatch in the making."""

    __slots__ = ("deltas", "ends")

    def __init__(self) -> None:
        self.deltas: list[TextDelta] = []
        self.ends: list[TextEnd] = []


_Drafts = dict[str, _Draft]  # by gateway


def _draft_of(drafts: _Drafts, gateway: str) -> _Draft:
    draft = drafts.get(gateway)
    if draft is None:
        draft = drafts[gateway] = _Draft()
    return draft
