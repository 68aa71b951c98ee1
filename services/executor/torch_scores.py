"""ScoreOperations by torch, for whoever has loaded it: its operations share rows among its threads."""

import numpy as np
import torch

from services.executor.batch import F32, I64, Mask
from services.executor.masks import TokenMasks
from services.executor.scores import BANNED

_LOG2_E = np.float32(1.4426950408889634)


class TorchScores:
    """See scores.py."""

    def are_finite(self, scores: F32) -> Mask:
        """[rows] whether every score is a finite number."""
        finite: Mask = torch.isfinite(torch.from_numpy(scores)).all(-1).numpy()
        return finite

    def peaks(self, blocks: F32) -> F32:
        """[rows, blocks] the best score of each block."""
        best: F32 = torch.from_numpy(blocks).amax(-1).numpy()
        return best

    def weigh(self, blocks: F32, rows: I64, best: F32, factors: F32) -> tuple[F32, F32]:
        """Weights and their sums."""
        weights = torch.from_numpy(blocks).index_select(0, torch.from_numpy(rows))
        weights.sub_(torch.from_numpy(best)[:, None, None])
        weights.mul_(torch.from_numpy(factors * _LOG2_E)[:, None, None]).exp2_()
        return weights.numpy(), weights.sum(-1).numpy()

    def ban(self, scores: F32, masks: TokenMasks) -> None:
        """Set what the masks do not allow to minus infinity, in place."""
        allowed = torch.from_numpy(masks.allowed(scores.shape[1]))
        for row, own in zip(masks.rows.tolist(), allowed, strict=True):
            torch.from_numpy(scores[row]).masked_fill_(~own, BANNED)
