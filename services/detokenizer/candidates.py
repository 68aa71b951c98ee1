"""Logprob columns into candidates with their bytes, gathered by the delta they belong to.

Knows the layout of a Logprobs message and the bytes of each token; knows nothing of text or of streams.
"""

from collections.abc import Sequence

from services.wire import columns
from services.wire.messages import Candidate, Logprobs, TokenLogprobs

Entry = TokenLogprobs | None  # None: a token without candidates, as the first of a prompt
Entries = dict[int, list[Entry]]


def by_delta(logprobs: Logprobs | None, token_bytes: Sequence[bytes]) -> Entries:
    """For each delta that has any, its tokens' candidates in order."""
    entries: Entries = {}
    if logprobs is None:
        return entries
    token_ids = columns.unpack(logprobs.token_ids)
    ranks = columns.unpack(logprobs.ranks)
    values = columns.unpack_floats(logprobs.values)
    # A model may have rows beyond its vocabulary; they stand for nothing.
    known = range(len(token_bytes))
    start = 0
    for delta, count in zip(columns.unpack(logprobs.rows), columns.unpack(logprobs.counts), strict=True):
        candidates = tuple(
            [
                Candidate(
                    token_ids[i], values[i], ranks[i], token_bytes[token_ids[i]] if token_ids[i] in known else b""
                )
                for i in range(start, start + count)
            ]
        )
        start += count
        entries.setdefault(delta, []).append(TokenLogprobs(candidates) if candidates else None)
    assert start == len(token_ids), "logprobs hold candidates of no token"
    return entries


def of_outputs(entries: Entries, delta: int, num_tokens: int) -> tuple[TokenLogprobs, ...]:
    """The candidates of the first num_tokens output tokens of one delta; an output token always has some."""
    found = entries.get(delta, ())[:num_tokens]
    known = tuple([entry for entry in found if entry is not None])
    assert len(known) == len(found), "an output token without candidates"
    return known
