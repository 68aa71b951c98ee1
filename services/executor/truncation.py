"""Cutting a distribution down: top_k first, then top_p on what top_k left, then min_p against the best token.

Works on scaled scores (logits over temperature, each row's best being 0), batched, each row with its own numbers.
Exactly top_k tokens pass it, and as few as reach top_p of the mass; between equal scores the lower id goes first.
At least one token is always left. Rows that ask for nothing are not touched.
"""

import numpy as np
import torch
from torch import Tensor

from services.executor.batch import I32, I64
from services.executor.sampling_state import F32

# The likeliest tokens looked at for top_p before whole rows are sorted: a nucleus seldom has more.
_WINDOW = 1024


def truncate(scaled: Tensor, top_k: I32, top_p: F32, min_p: F32) -> None:
    """What may not be drawn of scaled [rows, vocab] becomes minus infinity. top_k 0, top_p 1, min_p 0 = off."""
    limits = np.where((top_k > 0) & (top_k < scaled.shape[1]), top_k, scaled.shape[1]).astype(np.int64)
    ranked = np.flatnonzero((limits < scaled.shape[1]) | (top_p < 1))
    if len(ranked):
        index = torch.from_numpy(ranked)
        rows = scaled.index_select(0, index)
        scaled.index_copy_(0, index, rows.masked_fill_(~_best(rows, limits[ranked], top_p[ranked]), float("-inf")))
    floored = np.flatnonzero(min_p > 0)
    if len(floored):
        index = torch.from_numpy(floored)
        rows = scaled.index_select(0, index)
        floor = torch.from_numpy(np.log(min_p[floored]))[:, None]
        scaled.index_copy_(0, index, rows.masked_fill_(rows < floor, float("-inf")))


def _best(rows: Tensor, limits: I64, top_p: F32) -> Tensor:
    """The tokens that pass top_k and top_p, as a mask. limits: top_k, or the vocabulary's size."""
    vocab_size = rows.shape[1]
    is_open = limits == vocab_size  # no top_k bounds how many may pass
    window = min(vocab_size, max(int(limits[~is_open].max(initial=0)), _WINDOW if is_open.any() else 0))
    best = rows.topk(window, dim=-1).values
    counts = _count(rows, best, limits, top_p)
    if counts is None:
        best = rows.topk(vocab_size, dim=-1).values
        counts = _count(rows, best, limits, top_p)
        assert counts is not None, "a whole row holds all of its mass"
    edge = best.gather(1, counts - 1)
    passed = rows >= edge
    if bool((passed.sum(-1, keepdim=True) == counts).all()):
        return passed
    above, equal = rows > edge, rows == edge
    return above | (equal & (equal.cumsum(-1) <= counts - above.sum(-1, keepdim=True)))


def _count(rows: Tensor, best: Tensor, limits: I64, top_p: F32) -> Tensor | None:
    """How many of each row's best tokens [rows, window] pass, [rows, 1]; None when the window may not hold them all."""
    window = best.shape[1]
    limit = torch.from_numpy(limits)[:, None]
    masses = best.double().exp_().masked_fill_(torch.arange(window) >= limit, 0.0)
    within = masses.sum(-1, keepdim=True)
    # What top_p is a share of: what top_k left, or everything.
    total = torch.where(limit < rows.shape[1], within, rows.exp().sum(-1, keepdim=True, dtype=torch.float64))
    share = torch.from_numpy(top_p.astype(np.float64))[:, None]
    wanted = torch.where(share < 1, share * total, float("inf"))
    is_held = (limit <= window) | (within >= wanted)
    if window < rows.shape[1] and not bool(is_held.all()):
        return None
    before = masses.cumsum(-1) - masses
    passed = (before < wanted) & (torch.arange(window) < limit)
    return passed.sum(-1, keepdim=True).clamp_(min=1)
