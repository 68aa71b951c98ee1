"""What top_k, top_p and min_p leave to be drawn, and in which order they are applied."""

import numpy as np
import pytest
import torch
from torch import Tensor

from services.executor import truncation
from services.executor.selection import Ranking
from services.executor.truncation import Limits, truncate


def all_kept(scores: Tensor, top_k: list[int], top_p: list[float], min_p: list[float]) -> list[list[int]]:
    """The ids that may be drawn of each row, at temperature 1."""
    limits = Limits(np.arange(len(scores)), np.ones(len(scores)), np.array(top_k), np.array(top_p), np.array(min_p))
    ids: dict[int, list[int]] = {}
    for kept in truncate(Ranking(scores.numpy()), limits):
        for row, own, weights in zip(kept.rows.tolist(), kept.ids, kept.weights, strict=True):
            assert row not in ids
            ids[row] = sorted(own[weights > 0].tolist())
    return [ids[row] for row in range(len(scores))]


def kept(scores: Tensor, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
    return all_kept(scores[None], [top_k], [top_p], [min_p])[0]


FOUR = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
EQUAL = torch.zeros(4)


@pytest.mark.parametrize(
    ("scores", "limits", "expected"),
    [
        (FOUR, {"top_p": 1.0}, [0, 1, 2, 3]),
        (FOUR, {"top_p": 1e-4}, [0]),
        (FOUR, {"top_p": 0.0}, [0]),
        (FOUR, {"top_k": 2, "top_p": 0.5}, [0]),
        (FOUR, {"top_k": 2, "top_p": 0.6}, [0, 1]),
        (FOUR, {"top_p": 0.65}, [0, 1]),
        (FOUR, {"top_p": 0.75}, [0, 1, 2]),
        (EQUAL, {"top_p": 0.5}, [0, 1]),
        (torch.tensor([1.0, 1.0, 1.0, 0.0]), {"top_k": 2}, [0, 1]),
        (torch.tensor([0.0, 1.0, 2.0, 2.0]), {"top_k": 3}, [1, 2, 3]),
        (FOUR, {"top_k": 9}, [0, 1, 2, 3]),
        (FOUR, {"top_k": 1, "top_p": 0.99}, [0]),
        (FOUR, {"min_p": 0.4}, [0, 1, 2]),
        (FOUR, {"min_p": 1.0}, [0]),
        (EQUAL, {"min_p": 1.0}, [0, 1, 2, 3]),
        (FOUR, {"top_k": 3, "min_p": 0.6}, [0, 1]),
        (FOUR, {"top_p": 0.65, "min_p": 0.1}, [0, 1]),
    ],
)
def test_the_kept_set(scores: Tensor, limits: dict[str, float], expected: list[int]) -> None:
    assert kept(scores, int(limits.get("top_k", 0)), limits.get("top_p", 1.0), limits.get("min_p", 0.0)) == expected


def naive_kept(scores: Tensor, top_k: int, top_p: float, min_p: float) -> list[int]:
    """The definition, one token after the other."""
    order = sorted(range(len(scores)), key=lambda token: (-float(scores[token]), token))
    order = order[: top_k or len(order)]
    mass = (scores.double() - scores.max()).exp()
    total = sum(float(mass[token]) for token in order)
    passed: list[int] = []
    so_far = 0.0
    for token in order:
        if top_p < 1 and passed and so_far >= top_p * total:
            break
        passed.append(token)
        so_far += float(mass[token])
    return sorted(token for token in passed if float(mass[token]) >= min_p * float(mass.max()) and mass[token] > 0)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("vocab", [50, 64, 192])
def test_a_batch_of_rows_with_numbers_of_their_own_equals_the_definition(
    seed: int, vocab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truncation, "_WINDOW", 2)  # so that most nuclei do not fit into it
    monkeypatch.setattr(truncation, "_MOST", 300)  # so that rows come in several portions
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.normal(0, 2, (5, vocab)).astype(np.float32).round(1))
    scores[scores < -4] = float("-inf")
    top_k = rng.choice([0, 1, 5, 20, 50, 90], 5).tolist()
    top_p = rng.choice([1.0, 0.97, 0.6, 0.1], 5).tolist()
    min_p = rng.choice([0.0, 0.05, 0.5], 5).tolist()
    got = all_kept(scores, top_k, top_p, min_p)
    assert got == [naive_kept(scores[row], top_k[row], top_p[row], min_p[row]) for row in range(5)]
