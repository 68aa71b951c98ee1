"""Which tokens the rows of a step may draw, as bits: the one thing that structured output tells a sampler.

Plain numpy, shared by every backend. Whoever computes such masks may do so while the forward pass runs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from services.executor.batch import I32, I64, Mask

WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """rows: indices into the sampling rows of the step, rising; the others may draw anything.

    bits: [len(rows), num_words(vocab)] int32; bit t % 32 of word t // 32 is set where token t may be drawn.
    """

    rows: I64
    bits: I32

    def allowed(self, vocab_size: int) -> Mask:
        """[len(rows), vocab] which tokens may be drawn."""
        octets = np.ascontiguousarray(self.bits, "<i4").view(np.uint8)
        return np.unpackbits(octets, axis=1, count=vocab_size, bitorder="little").view(np.bool_)


def num_words(vocab_size: int) -> int:
    """How many words of 32 bits hold one bit for each token."""
    return -(-vocab_size // WORD_BITS)


def words_of(token_ids: Iterable[int]) -> tuple[I64, I32]:
    """Where the bits of some tokens are: the indices of their words, rising, and the bits in each."""
    words: dict[int, int] = {}
    for token_id in sorted(token_ids):
        words[token_id // WORD_BITS] = words.get(token_id // WORD_BITS, 0) | 1 << token_id % WORD_BITS
    return np.array(list(words), np.int64), np.array(list(words.values()), np.uint32).view(np.int32)
