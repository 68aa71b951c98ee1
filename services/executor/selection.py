"""The best tokens of each row, found without sorting rows: a bound first, then only what reaches it.

A row is cut into blocks of neighbouring tokens. The k-th best of the blocks' best scores is a bound that at least k
tokens reach; whatever reaches it is collected, with all ties, and put in order. So the answer is exact, and between
equal scores the lower id goes first.
"""

import math

import numpy as np

from services.executor.batch import F32, I64
from services.executor.scores import PLAIN, ScoreOperations

_BLOCK = 64
_SMALL_BLOCK = 8
_BLOCKS_A_TOKEN = 4  # blocks that there must be for each token wanted, or smaller ones are looked at
_NO_KEY = np.iinfo(np.int64).max
NO_TOKEN = -1


class Ranking:
    """Scores [rows, vocab], float32 without NaN; not to be written while this is used."""

    def __init__(self, scores: F32, operations: ScoreOperations = PLAIN) -> None:
        num_rows, self.vocab_size = scores.shape
        # Vocabularies are padded to multiples of 64; where one is not, blocks are as long as divides it.
        self.block_size = math.gcd(self.vocab_size, _BLOCK)
        self.blocks: F32 = scores.reshape(num_rows, -1, self.block_size)
        self.operations = operations
        self._peaks = operations.peaks(self.blocks)
        self.best_scores: F32 = self._peaks.max(axis=1)

    def best(self) -> I64:
        """[rows] the best token of each."""
        rows = np.arange(len(self._peaks))
        block = self._peaks.argmax(axis=1)
        tokens: I64 = block * self.block_size + self.blocks[rows, block].argmax(axis=1)
        return tokens

    def top(self, rows: I64, counts: I64) -> tuple[F32, I64]:
        """The counts[i] best tokens of rows[i]: scores and ids, [rows, largest count], best first.

        Where there are fewer tokens that are not banned: minus infinity and NO_TOKEN.
        """
        bounds = self._bounds(rows, counts)
        own, block = np.nonzero(self._peaks[rows] >= bounds[:, None])
        found = self.blocks[rows[own], block]
        hits = np.flatnonzero(found >= bounds[own, None])
        hit = hits // self.block_size
        keys = _keys(found.reshape(-1)[hits], block[hit] * self.block_size + hits % self.block_size)
        lengths = np.bincount(own[hit], minlength=len(rows))
        width = int(counts.max(initial=0))
        listed = np.full((len(rows), max(width, int(lengths.max(initial=0)))), _NO_KEY)
        listed[np.arange(listed.shape[1]) < lengths[:, None]] = keys  # both go row by row
        listed.sort(axis=1)
        listed = listed[:, :width]
        listed[np.arange(width) >= counts[:, None]] = _NO_KEY
        return _decode(listed)

    def _bounds(self, rows: I64, counts: I64) -> F32:
        """[rows] a score that at least counts[i] tokens of the row reach, or all that are not banned.

        The more blocks there are to a token wanted, the fewer tokens beyond the wanted reach it.
        """
        bounds = np.full(len(rows), np.inf, np.float32)
        left = counts > 0
        for size in dict.fromkeys((self.block_size, math.gcd(self.vocab_size, _SMALL_BLOCK), 1)):
            num_blocks = self.vocab_size // size
            chosen = np.flatnonzero(left & (counts * _BLOCKS_A_TOKEN <= num_blocks if size > 1 else left))
            if len(chosen):
                peaks = self._peaks[rows[chosen]] if size == self.block_size else self._peaks_of(rows[chosen], size)
                place = np.maximum(num_blocks - counts[chosen], 0)
                peaks.partition(np.unique(place), axis=1)
                bounds[chosen] = peaks[np.arange(len(chosen)), place]
                left[chosen] = False
        return np.maximum(bounds, np.finfo(np.float32).min, out=bounds)

    def _peaks_of(self, rows: I64, size: int) -> F32:
        """[rows, vocab / size] the best score of each so many tokens, which lie apart; a copy."""
        peaks: F32 = self.blocks[rows].reshape(len(rows), size, -1).max(1)
        return peaks


def _keys(scores: F32, ids: I64) -> I64:
    """Numbers that rise as scores fall, and with the id between equal scores."""
    bits = (scores + np.float32(0.0)).view(np.int32)  # no negative zero
    rising = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))
    keys: I64 = (~rising).astype(np.int64) << 32 | ids
    return keys


def _decode(keys: I64) -> tuple[F32, I64]:
    """The scores and ids of keys; minus infinity and NO_TOKEN for _NO_KEY."""
    rising = ~(keys >> 32).astype(np.int32)
    scores = (rising ^ ((rising >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)
    is_none = keys == _NO_KEY
    return np.where(is_none, np.float32(-np.inf), scores), np.where(is_none, NO_TOKEN, keys & 0xFFFFFFFF)
