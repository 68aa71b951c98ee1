"""ScoreOperations by the native kernels: rows are shared among the threads that the forward pass has."""

import numpy as np

from services.executor.batch import F32, I64, Mask
from services.executor.masks import TokenMasks
from services.executor.native.binding import Kernels

# Fewer rows take less time than waking the other threads.
_LEAST_TO_SHARE = 8


class NativeScores:
    """See scores.py."""

    def __init__(self, kernels: Kernels, num_threads: int) -> None:
        self._kernels = kernels
        self._num_threads = num_threads

    def are_finite(self, scores: F32) -> Mask:
        """[rows] whether every score is a finite number."""
        num_rows, vocab_size = scores.shape
        finite: Mask = np.empty(num_rows, np.bool_)
        self._kernels.check(scores.ctypes.data, vocab_size, num_rows, finite.ctypes.data, self._threads(num_rows))
        return finite

    def peaks(self, blocks: F32) -> F32:
        """[rows, blocks] the best score of each block."""
        num_rows, num_blocks, block_size = blocks.shape
        peaks: F32 = np.empty((num_rows, num_blocks), np.float32)
        sizes = num_blocks * block_size, block_size, num_rows
        self._kernels.peaks(blocks.ctypes.data, *sizes, peaks.ctypes.data, self._threads(num_rows))
        return peaks

    def weigh(self, blocks: F32, rows: I64, best: F32, factors: F32) -> tuple[F32, F32]:
        """What is below the least normal number weighs nothing."""
        _, num_blocks, block_size = blocks.shape
        weights: F32 = np.empty((len(rows), num_blocks, block_size), np.float32)
        sums: F32 = np.empty((len(rows), num_blocks), np.float32)
        own, bests, factors = np.ascontiguousarray(rows), np.ascontiguousarray(best), np.ascontiguousarray(factors)
        self._kernels.weigh(
            *(blocks.ctypes.data, num_blocks * block_size, block_size),
            *(own.ctypes.data, bests.ctypes.data, factors.ctypes.data, len(rows)),
            *(weights.ctypes.data, sums.ctypes.data, self._threads(len(rows))),
        )
        return weights, sums

    def ban(self, scores: F32, masks: TokenMasks) -> None:
        """Set what the masks do not allow to minus infinity, in place."""
        rows, bits = np.ascontiguousarray(masks.rows), np.ascontiguousarray(masks.bits)
        self._kernels.ban(
            scores.ctypes.data, scores.shape[1], rows.ctypes.data, bits.ctypes.data, len(rows), self._num_threads
        )

    def _threads(self, num_rows: int) -> int:
        return self._num_threads if num_rows >= _LEAST_TO_SHARE else 1
