"""What is done with whole rows of scores, as one protocol, since it takes longest: each score is looked at.

The plain numpy here is the oracle; the kernels (native/scores.py) and torch (torch_scores.py) are faster. Knows nothing
of why.
"""

from typing import Protocol

import numpy as np

from services.executor.batch import F32, I64, Mask
from services.executor.masks import TokenMasks

BANNED = float("-inf")


class ScoreOperations(Protocol):
    """scores: [rows, vocab], float32, contiguous."""

    def are_finite(self, scores: F32) -> Mask:
        """[rows] whether every score is a finite number."""

    def peaks(self, blocks: F32) -> F32:
        """[rows, blocks] the best score of each block. blocks: [rows, blocks, block], the scores cut; none is NaN."""

    def weigh(self, blocks: F32, rows: I64, best: F32, factors: F32) -> tuple[F32, F32]:
        """Weights exp((score - best) x factor) of some rows, [n, blocks, block], and sums of the blocks [n, blocks].

        best, factors: [n] of those rows; no score is above the best.
        """

    def ban(self, scores: F32, masks: TokenMasks) -> None:
        """Set what the masks do not allow to minus infinity, in place."""


class PlainScores:
    """See the module docstring."""

    def are_finite(self, scores: F32) -> Mask:
        """One by one."""
        finite: Mask = np.all(np.isfinite(scores), axis=-1)
        return finite

    def peaks(self, blocks: F32) -> F32:
        """Block by block."""
        best: F32 = blocks.max(-1)
        return best

    def weigh(self, blocks: F32, rows: I64, best: F32, factors: F32) -> tuple[F32, F32]:
        """All at once."""
        weights: F32 = blocks[rows]
        with np.errstate(over="ignore"):  # what is beyond float32's range weighs nothing
            weights -= best[:, None, None]
            weights *= factors[:, None, None]
        np.exp(weights, out=weights)
        return weights, weights.sum(-1)

    def ban(self, scores: F32, masks: TokenMasks) -> None:
        """Row by row."""
        for row, allowed in zip(masks.rows.tolist(), masks.allowed(scores.shape[1]), strict=True):
            scores[row, ~allowed] = BANNED


PLAIN = PlainScores()
