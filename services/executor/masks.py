"""Which tokens the rows of a step may draw, as bits: the one thing that structured output tells a sampler.

Plain numpy, shared by every backend. Whoever computes such masks may do so while the forward pass runs.
"""

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
