"""Whole rows as weights: exp((score - best) / temperature), summed block by block.

Sums within a block are float32, across blocks float64, always in the order of token ids; so a token rarer than
float32's precision can still be drawn late in the vocabulary, and a row's sums do not depend on its neighbours.
"""

from collections.abc import Iterator

import numpy as np

from services.executor.batch import F32, F64, I64
from services.executor.selection import Ranking

# Rows weighed at once: their weights stay in a processor's cache.
_ROWS_AT_ONCE = 8


class Weigher:
    """Weighs rows of a ranking."""

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking

    def totals(self, rows: I64, temperature: F64) -> F64:
        """[rows] the sum of all weights."""
        return np.concatenate([mass[:, -1] for _, mass, _ in self._weigh(rows, temperature)])

    def draw(self, rows: I64, temperature: F64, uniforms: F64) -> I64:
        """[rows] the token at which the running sum of weights exceeds uniforms x total."""
        drawn: list[I64] = []
        for part, mass, weights in self._weigh(rows, temperature):
            index = np.arange(len(mass))
            target = uniforms[part] * mass[:, -1]
            block = first_above(mass, target)
            below = np.where(block > 0, mass[index, block - 1], 0.0)
            within = np.cumsum(weights[index, block], axis=1, dtype=np.float64)
            drawn.append(block * self._ranking.block_size + first_above(within, target - below))
        return np.concatenate(drawn)

    def _weigh(self, rows: I64, temperature: F64) -> Iterator[tuple[slice, F64, F32]]:
        """(which of the rows, running sum after each block, weights [rows, blocks, block])."""
        ranking, factors = self._ranking, (1 / temperature).astype(np.float32)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            own = rows[part]
            weights, sums = ranking.operations.weigh(ranking.blocks, own, ranking.best_scores[own], factors[part])
            yield part, np.cumsum(sums, axis=1, dtype=np.float64), weights


def first_above(sums: F64, targets: F64) -> I64:
    """[rows] the first place whose running sum exceeds the target; where none does, the last that adds anything."""
    place = (sums <= targets[:, None]).sum(axis=1)
    last = (sums < sums[:, -1:]).sum(axis=1)
    first: I64 = np.minimum(place, last)
    return first
