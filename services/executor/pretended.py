"""Sampling on the simulated backend: real parameters over pretended logits.

A request that asks for nothing but temperature, seed and logprobs draws from hashes alone (hash_cells.py), whole steps
at once. One that asks for more gets what the definition (reference.py) draws from the logits of a few tokens: those
that it names and some that every request knows. They follow from what its row read back of its KV, and the history
from what the scheduler told and what was sampled; so a history that is late or lost changes a token as surely as a
wrong block does. Constraints are not followed here.
"""

import numpy as np

from services.executor import reference
from services.executor.batch import F64, I64
from services.executor.draws import U64, mix
from services.executor.slots import read_column
from services.wire.messages import Sampling, SlotInit

# Ids below it are special or control tokens in most vocabularies; they are not put out unless they are named.
FIRST_TOKEN = 32

_NUM_KNOWN = 64  # tokens that have a logit in every row
# Logits: two exponential tails, one of the token itself, so that a text repeats itself as real ones do, and one of what
# was read back; some logits are below zero.
_SPREAD, _OFFSET = 2.5, 3.0
_ID_FACTOR = np.uint64(0xC2B2AE3D27D4EB4F)


def first_token(vocab_size: int) -> int:
    """The lowest id that is put out."""
    return min(FIRST_TOKEN, vocab_size // 2)


def asks_for_more(sampling: Sampling) -> bool:
    """Whether more than temperature, seed and logprobs matters."""
    has_minimum = bool(sampling.min_tokens and sampling.stop_token_ids)
    return has_minimum or sampling != Sampling(
        temperature=sampling.temperature,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        min_tokens=sampling.min_tokens,
        stop_token_ids=sampling.stop_token_ids,
        constraint=sampling.constraint,
        ignore_eos=sampling.ignore_eos,
    )


class PretendedSampler:
    """One generation of a slot that asks for more. ids: the tokens that have a logit, rising."""

    def __init__(self, op: SlotInit, vocab_size: int) -> None:
        self._op = op
        first = first_token(vocab_size)
        known = np.arange(first, min(first + _NUM_KNOWN, vocab_size))
        asks = op.sampling
        named = map(read_column, (asks.bias_token_ids, asks.allowed_token_ids, asks.stop_token_ids, *asks.bad_words))
        self.ids: I64 = np.unique(np.concatenate((known, *named))).astype(np.int64)
        self._tendency = _tail(mix(self.ids.astype(np.uint64)))
        self._has_history = asks.needs_history
        self._tokens: list[int] = read_column(op.known_tokens).tolist()

    def draw(self, digest: np.uint64, num_tokens: int) -> int | None:
        """The token at position num_tokens of a row that read back this digest; None when none may be drawn.

        It joins the history. Raises RuntimeError when that does not end where the row does.
        """
        tokens: I64 = np.zeros(num_tokens, np.int64)  # what they are does not matter without penalties and bad words
        if self._has_history:
            if len(self._tokens) != num_tokens:
                raise RuntimeError(
                    f"slot {self._op.slot} samples after {num_tokens} tokens with a history of {len(self._tokens)}"
                )
            tokens = np.array(self._tokens, np.int64)
        scores = reference.edited(self._op, tokens, self.ids, self.logits(digest))
        token = reference.draw(self._op, num_tokens, self.ids, scores)
        if self._has_history:
            self._tokens.append(token or 0)
        return token

    def logits(self, digest: np.uint64) -> F64:
        """[ids] the logits of a row that read back this digest."""
        return (self._tendency + _tail(mix(self.ids.astype(np.uint64) * _ID_FACTOR + digest))) * _SPREAD - _OFFSET


def _tail(hashes: U64) -> F64:
    """Numbers above 0, exponentially distributed."""
    uniform = ((hashes >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53
    tail: F64 = -np.log(uniform)
    return tail
