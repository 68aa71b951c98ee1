"""The best tokens of each row, found without sorting rows: a bound first, then only what reaches it.

A row is cut into blocks of neighbouring tokens. The k-th best of the blocks' best scores is a bound that at least k
tokens reach; whatever reaches it is collected, with all ties, and put in order. So the answer is exact, and between
equal scores the lower id goes first.
"""

import math

import numpy as np
from torch import Tensor

from services.executor.batch import F32, I64

_BLOCK = 64
NO_TOKEN = -1


class Ranking:
    """Scores [rows, vocab], float32 without NaN; not to be written while this is used."""

    def __init__(self, scores: Tensor) -> None:
        num_rows, self.vocab_size = scores.shape
        # Vocabularies are padded to multiples of 64; where one is not, blocks are as long as divides it.
        self.block_size = math.gcd(self.vocab_size, _BLOCK)
        self.blocks = scores.view(num_rows, -1, self.block_size)
        self._blocks: F32 = self.blocks.numpy()
        self._peaks: F32 = self.blocks.amax(-1).numpy()
        self.best_scores: F32 = self._peaks.max(axis=1)

    def best(self) -> I64:
        """[rows] the best token of each."""
        rows = np.arange(len(self._peaks))
        block = self._peaks.argmax(axis=1)
        tokens: I64 = block * self.block_size + self._blocks[rows, block].argmax(axis=1)
        return tokens

    def top(self, rows: I64, counts: I64) -> tuple[F32, I64]:
        """The counts[i] best tokens of rows[i]: scores and ids, [rows, largest count], best first.

        Where there are fewer tokens that are not banned: minus infinity and NO_TOKEN.
        """
        bounds = self._bounds(rows, counts)
        own, block = np.nonzero(self._peaks[rows] >= bounds[:, None])
        found = self._blocks[rows[own], block]
        hit, place = np.nonzero(found >= bounds[own][:, None])
        own, ids, scores = own[hit], block[hit] * self.block_size + place, found[hit, place]
        order = np.lexsort((-scores, own))  # stable: ids rise within equal scores
        first = np.searchsorted(own, np.arange(len(rows)))
        rank = np.arange(len(own)) - first[own]
        listed = rank < counts[own]
        shape = len(rows), int(counts.max(initial=0))
        top_scores = np.full(shape, -np.inf, np.float32)
        top_ids = np.full(shape, NO_TOKEN, np.int64)
        top_scores[own[listed], rank[listed]] = scores[order][listed]
        top_ids[own[listed], rank[listed]] = ids[order][listed]
        return top_scores, top_ids

    def _bounds(self, rows: I64, counts: I64) -> F32:
        """[rows] a score that at least counts[i] tokens of the row reach, or all that are not banned."""
        bounds = np.empty(len(rows), np.float32)
        num_blocks = self._peaks.shape[1]
        by_peaks = counts <= num_blocks
        peaks = np.sort(self._peaks[rows[by_peaks]], axis=1)
        bounds[by_peaks] = peaks[np.arange(len(peaks)), num_blocks - np.maximum(counts[by_peaks], 1)]
        for index in np.flatnonzero(~by_peaks):
            place = max(self.vocab_size - int(counts[index]), 0)
            bounds[index] = np.partition(self._blocks[rows[index]].reshape(-1), place)[place]
        return np.maximum(bounds, np.finfo(np.float32).min, out=bounds)
