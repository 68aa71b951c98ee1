"""The best tokens of rows: exact whatever the block sizes, with ties, bans, zeros of both signs and odd sizes."""

import numpy as np
import pytest
import torch
from torch import Tensor

from services.executor.selection import NO_TOKEN, Ranking


def naive(scores: Tensor, count: int) -> list[tuple[float, int]]:
    order = sorted(range(len(scores)), key=lambda token: (-float(scores[token]), token))
    best = [(float(scores[token]), token) for token in order if scores[token] != float("-inf")][:count]
    return best + [(float("-inf"), NO_TOKEN)] * (count - len(best))


def check(scores: Tensor, rows: list[int], counts: list[int]) -> None:
    top, ids = Ranking(scores.numpy()).top(np.array(rows), np.array(counts))
    width = max(counts)
    for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
        expected = naive(scores[row], count) + [(float("-inf"), NO_TOKEN)] * (width - count)
        assert list(zip(top[index].tolist(), ids[index].tolist(), strict=True)) == expected


@pytest.mark.parametrize("vocab", [1, 7, 64, 96, 1000, 4096])
@pytest.mark.parametrize("seed", range(4))
def test_the_top_of_rows_is_exact_whatever_is_asked_of_each(vocab: int, seed: int) -> None:
    rng = np.random.default_rng([vocab, seed])
    scores = torch.from_numpy(rng.normal(0, 2, (6, vocab)).astype(np.float32).round(seed % 3))
    scores[1, rng.integers(0, vocab, vocab // 2)] = float("-inf")
    scores[2] = 0.0
    scores[2, ::3] = -0.0
    scores[3] *= 1e38
    counts = [max(1, vocab // 300), min(vocab, 3), vocab, max(1, vocab // 17), max(1, vocab // 2), 1]
    check(scores, [4, 1, 3, 2, 0, 1], counts)
    check(scores, [0, 1, 2, 3, 4, 5], counts[::-1])


def test_nothing_asked_of_a_row_gives_nothing() -> None:
    top, ids = Ranking(torch.randn(2, 128).numpy()).top(np.array([0, 1]), np.array([0, 2]))
    assert ids[0].tolist() == [NO_TOKEN] * 2 and (top[0] == -np.inf).all() and (ids[1] >= 0).all()
    assert Ranking(torch.randn(2, 128).numpy()).top(np.array([0]), np.array([0]))[1].shape == (1, 0)


@pytest.mark.parametrize("vocab", [7, 64, 640])
def test_the_best_token_is_the_first_of_the_best(vocab: int) -> None:
    scores = torch.randn(20, vocab, generator=torch.Generator().manual_seed(vocab)).round()
    ranking = Ranking(scores.numpy())
    assert ranking.best().tolist() == [int((row == row.max()).nonzero()[0]) for row in scores]
    assert ranking.best_scores.tolist() == scores.amax(-1).tolist()
