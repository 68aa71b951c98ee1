"""Log-probabilities, from the wire's candidates to the public ones: the chosen token, the likeliest, what each spells.

Pure: knows the layout of both. Invariant: a candidate is text when its bytes are whole characters, else raw bytes; the
likeliest come likeliest first, as many as were asked for.
"""

from collections.abc import Iterable, Iterator, Sequence

from services.wire import messages
from tandem.v1 import common_pb2


def of_outputs(tokens: Iterable[messages.TokenLogprobs], num_top: int) -> Iterator[common_pb2.TokenLogprobs]:
    """One entry an output token."""
    return (_entry(token, num_top) for token in tokens)


def of_prompt(
    reported: Sequence[messages.TokenLogprobs | None], num_tokens: int, num_top: int
) -> Iterator[common_pb2.TokenLogprobs]:
    """One entry a prompt token; the first has no candidates, whether the engine reports that or leaves it out."""
    num_missing = num_tokens - len(reported)
    assert 0 <= num_missing <= 1, f"{len(reported)} of {num_tokens} prompt tokens have log-probabilities"
    for token in (*[None] * num_missing, *reported):
        yield common_pb2.TokenLogprobs() if token is None else _entry(token, num_top)


def _entry(token: messages.TokenLogprobs, num_top: int) -> common_pb2.TokenLogprobs:
    ranked = sorted(token.candidates, key=lambda candidate: candidate.rank)
    return common_pb2.TokenLogprobs(
        chosen=_candidate(token.candidates[0]), top=[_candidate(candidate) for candidate in ranked[:num_top]]
    )


def _candidate(candidate: messages.Candidate) -> common_pb2.Candidate:
    proto = common_pb2.Candidate(token_id=candidate.token_id, logprob=candidate.logprob, rank=candidate.rank)
    try:
        proto.text = candidate.token_bytes.decode()
    except UnicodeDecodeError:
        proto.raw = candidate.token_bytes
    return proto
