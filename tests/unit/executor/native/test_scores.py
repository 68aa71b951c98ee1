"""What the kernels do with whole rows of scores, against plain numpy; torch's operations too."""

import numpy as np
import pytest

from services.executor.masks import TokenMasks, num_words
from services.executor.native.binding import Kernels
from services.executor.native.scores import NativeScores
from services.executor.scores import PLAIN
from services.executor.torch_scores import TorchScores

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
    scores = rng.normal(size=(ROWS, vocab_size)).astype(np.float32)
    expected, by_torch = scores.copy(), scores.copy()
    PLAIN.ban(expected, masks)
    TorchScores().ban(by_torch, masks)
    assert np.array_equal(by_torch, expected)
    assert np.isneginf(expected[3]).all() and not np.isneginf(expected[1]).any()
    NativeScores(kernels, num_threads).ban(scores, masks)
    assert np.array_equal(scores, expected)


@pytest.mark.parametrize("vocab_size", [1, 7, 8, 33, 1000])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_are_finite(kernels: Kernels, vocab_size: int, num_threads: int) -> None:
    scores = np.random.default_rng(vocab_size).normal(size=(ROWS, vocab_size)).astype(np.float32)
    scores[0, -1], scores[3, 0], scores[5, vocab_size // 2] = np.inf, np.nan, -np.inf
    scores[7] = np.finfo(np.float32).max  # whose sum is not finite, though each of them is
    finite = NativeScores(kernels, num_threads).are_finite(scores)
    assert np.array_equal(finite, PLAIN.are_finite(scores))
    assert np.array_equal(finite, TorchScores().are_finite(scores))
    assert np.flatnonzero(~finite).tolist() == [0, 3, 5]


BLOCKS = [(1, 1), (7, 1), (3, 32), (1000, 8), (768, 64), (5, 20), (3, 100)]  # how many, of how many scores


@pytest.mark.parametrize(("num_blocks", "block_size"), BLOCKS)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_peaks(kernels: Kernels, num_blocks: int, block_size: int, num_threads: int) -> None:
    blocks = np.random.default_rng(num_blocks).normal(size=(ROWS, num_blocks, block_size)).astype(np.float32)
    blocks[1, 0], blocks[2, -1, -1] = -np.inf, 1e38
    expected = PLAIN.peaks(blocks)
    assert np.array_equal(NativeScores(kernels, num_threads).peaks(blocks), expected)
    assert np.array_equal(TorchScores().peaks(blocks), expected)


@pytest.mark.parametrize(("num_blocks", "block_size"), BLOCKS)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_weigh(kernels: Kernels, num_blocks: int, block_size: int, num_threads: int) -> None:
    """Of some rows, each alone as in company; what is banned weighs nothing, and so does what is far below the best."""
    rng = np.random.default_rng(num_blocks)
    blocks = rng.normal(0, 3, size=(ROWS, num_blocks, block_size)).astype(np.float32)
    blocks[4].flat[1:] = -np.inf
    rows = np.array([8, 0, 4, 2, 7, 3, 1, 6, 5])
    best, factors = blocks.max((1, 2))[rows], rng.choice([0.1, 1.0, 3.0, 1e30], ROWS).astype(np.float32)
    native = NativeScores(kernels, num_threads)
    weights, sums = native.weigh(blocks, rows, best, factors)
    expected, expected_sums = PLAIN.weigh(blocks, rows, best, factors)
    np.testing.assert_allclose(weights, expected, rtol=1e-6, atol=2e-38)
    np.testing.assert_allclose(sums, expected_sums, rtol=1e-5, atol=1e-36)
    np.testing.assert_allclose(
        TorchScores().weigh(blocks, rows, best, factors)[1], expected_sums, rtol=1e-4, atol=1e-36
    )
    assert weights[2].sum() == 1.0
    for index in range(ROWS):
        only = slice(index, index + 1)
        alone, _ = native.weigh(blocks, rows[only], best[only], factors[only])
        assert np.array_equal(alone[0], weights[index])
