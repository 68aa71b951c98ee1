"""Cutting a distribution down: top_k first, then top_p on what top_k left, then min_p against the best token.

Each row is looked at through a window of its best tokens, widened until it surely holds all that pass. Weights are
exp((score - best) / temperature) in float64, so 1 for the best token. Exactly top_k tokens pass top_k, and as few as
reach top_p of the mass; between equal scores the lower id goes first. The best token always passes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from services.executor.batch import F64, I64, Mask
from services.executor.selection import NO_TOKEN, Ranking
from services.executor.weighing import Weigher

# The likeliest tokens looked at first where no top_k tells how many may pass, and how much wider each further look is.
_WINDOW = 64
_WIDER = 16
# Scores held at once, which bounds memory.
_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Of some rows; every row is cut down by at least one of them. top_k 0, top_p 1, min_p 0 = off."""

    rows: I64  # indices into the ranking
    temperature: F64
    top_k: I64
    top_p: F64
    min_p: F64

    def pick(self, index: I64) -> "Limits":
        """Some of the rows."""
        return Limits(
            self.rows[index], self.temperature[index], self.top_k[index], self.top_p[index], self.min_p[index]
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """What may be drawn of some rows. ids, weights: [rows, width], best first; what does not pass weighs 0."""

    rows: I64
    ids: I64
    weights: F64


def truncate(ranking: Ranking, limits: Limits) -> Iterator[Kept]:
    """Each row once, in some order."""
    vocab_size = ranking.vocab_size
    top_k = np.where((limits.top_k > 0) & (limits.top_k < vocab_size), limits.top_k, vocab_size)
    limits = Limits(limits.rows, limits.temperature, top_k, limits.top_p, limits.min_p)
    totals = np.full(len(top_k), np.inf)  # of the whole row, where top_p is a share of it
    whole = np.flatnonzero((top_k == vocab_size) & (limits.top_p < 1))
    if len(whole):
        totals[whole] = Weigher(ranking).totals(limits.rows[whole], limits.temperature[whole])
    widths = np.where(top_k < vocab_size, top_k, min(_WINDOW, vocab_size))
    left = np.arange(len(top_k))
    while len(left):
        incomplete: list[I64] = []
        for part in _parts(left, widths):
            kept, is_complete = _look(ranking, limits.pick(part), totals[part], widths[part])
            yield Kept(kept.rows[is_complete], kept.ids[is_complete], kept.weights[is_complete])
            incomplete.append(part[~is_complete])
        left = np.concatenate(incomplete)
        widths[left] = np.minimum(widths[left] * _WIDER, vocab_size)


def _parts(left: I64, widths: I64) -> Iterator[I64]:
    """The rows in portions of bounded memory, those of like width together."""
    order = left[np.argsort(widths[left], kind="stable")]
    num_rows = max(1, _MOST // int(widths[left].max()))
    for start in range(0, len(order), num_rows):
        yield order[start : start + num_rows]


def _look(ranking: Ranking, limits: Limits, totals: F64, widths: I64) -> tuple[Kept, Mask]:
    """What passes among the best `widths` tokens of each row, and whether nothing beyond them can."""
    scores, ids = ranking.top(limits.rows, widths)
    best = ranking.best_scores[limits.rows].astype(np.float64)[:, None]
    weights = np.exp((scores - best) / limits.temperature[:, None])
    mass = np.cumsum(weights, axis=1)
    totals = np.where(np.isinf(totals), mass[:, -1], totals)
    wanted = np.where(limits.top_p < 1, limits.top_p * totals, np.inf)[:, None]
    before = np.concatenate((np.zeros((len(mass), 1)), mass[:, :-1]), axis=1)
    floor = limits.min_p[:, None]
    passes = (before < wanted) & (weights >= floor)
    passes[:, 0] = True
    has_ended = ids[np.arange(len(ids)), widths - 1] == NO_TOKEN  # fewer tokens than looked for are not banned
    last = weights[np.arange(len(ids)), widths - 1]
    is_complete = (widths >= limits.top_k) | has_ended | (mass[:, -1] >= wanted[:, 0]) | (last < limits.min_p)
    return Kept(limits.rows, ids, np.where(passes, weights, 0.0)), is_complete
