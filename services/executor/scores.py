"""What a sampler does with whole rows of scores, as one protocol, since it takes longest: each score is looked at.

The plain torch here is the oracle, and what serves where there are no kernels (native/scores.py). Knows nothing of why.
"""

from typing import Protocol

import torch
from torch import Tensor

from services.executor.masks import TokenMasks

BANNED = float("-inf")


class ScoreOperations(Protocol):
    """scores: [rows, vocab], float32, contiguous."""

    def ban(self, scores: Tensor, masks: TokenMasks) -> None:
        """Set what the masks do not allow to minus infinity, in place."""


class PlainScores:
    """See the module docstring."""

    def ban(self, scores: Tensor, masks: TokenMasks) -> None:
        """Row by row."""
        allowed = torch.from_numpy(masks.allowed(scores.shape[1]))
        for row, own in zip(masks.rows.tolist(), allowed, strict=True):
            scores[row].masked_fill_(~own, BANNED)


PLAIN = PlainScores()
