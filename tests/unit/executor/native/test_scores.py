"""What the kernels do with whole rows of scores, against plain torch."""

import numpy as np
import pytest
import torch

from services.executor.masks import TokenMasks, num_words
from services.executor.native.binding import Kernels
from services.executor.native.scores import NativeScores
from services.executor.scores import PLAIN

ROWS = 9


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 1000, 4099])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_ban(kernels: Kernels, vocab_size: int, num_threads: int) -> None:
    """Random bits, all, none, and a single one; other rows are left alone."""
    rng = np.random.default_rng(vocab_size)
    bits = rng.integers(-(2**31), 2**31, (5, num_words(vocab_size))).astype(np.int32)
    bits[1], bits[2], bits[3] = -1, 0, 0
    bits[3, -1] = 1 << (vocab_size - 1) % 32 if vocab_size % 32 else -(2**31)
    masks = TokenMasks(np.array([0, 2, 3, 7, 8]), bits)
    scores = torch.randn(ROWS, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    expected = scores.clone()
    PLAIN.ban(expected, masks)
    assert bool(expected[3].isneginf().all()) and not expected[1].isneginf().any()
    NativeScores(kernels, num_threads).ban(scores, masks)
    assert torch.equal(scores, expected)
