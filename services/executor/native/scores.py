"""ScoreOperations by the native kernels: rows are shared among the threads that the forward pass has."""

import numpy as np
from torch import Tensor

from services.executor.masks import TokenMasks
from services.executor.native.binding import Kernels


class NativeScores:
    """See scores.py."""

    def __init__(self, kernels: Kernels, num_threads: int) -> None:
        self._kernels = kernels
        self._num_threads = num_threads

    def ban(self, scores: Tensor, masks: TokenMasks) -> None:
        """Set what the masks do not allow to minus infinity, in place."""
        rows, bits = np.ascontiguousarray(masks.rows), np.ascontiguousarray(masks.bits)
        self._kernels.ban(
            scores.data_ptr(), scores.shape[1], rows.ctypes.data, bits.ctypes.data, len(rows), self._num_threads
        )
