"""What top_k, top_p and min_p leave to be drawn, and in which order they are applied."""

import numpy as np
import pytest
import torch
from torch import Tensor

from services.executor import truncation
from services.executor.truncation import truncate


def kept(scores: Tensor, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
    scaled = (scores - scores.max())[None]
    truncate(scaled, np.array([top_k], np.int32), np.array([top_p], np.float32), np.array([min_p], np.float32))
    return torch.isfinite(scaled[0]).nonzero().flatten().tolist()


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
    mass = scores.double().exp()
    total = sum(float(mass[token]) for token in order)
    passed: list[int] = []
    so_far = 0.0
    for token in order:
        if top_p < 1 and passed and so_far >= top_p * total:
            break
        passed.append(token)
        so_far += float(mass[token])
    return sorted(token for token in passed if float(mass[token]) >= min_p * float(mass.max()))


@pytest.mark.parametrize("seed", range(40))
def test_a_batch_of_rows_with_numbers_of_their_own_equals_the_definition(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(truncation, "_WINDOW", 8)  # so that some nuclei do not fit into it
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.normal(0, 2, (5, 50)).astype(np.float32).round(1))
    top_k = rng.choice([0, 1, 5, 20, 50, 90], 5).astype(np.int32)
    top_p = rng.choice([1.0, 0.97, 0.6, 0.1], 5).astype(np.float32)
    min_p = rng.choice([0.0, 0.05, 0.5], 5).astype(np.float32)
    scaled = scores - scores.amax(-1, keepdim=True)
    truncate(scaled, top_k, top_p, min_p)
    for row in range(5):
        expected = naive_kept(scores[row], int(top_k[row]), float(top_p[row]), float(min_p[row]))
        assert torch.isfinite(scaled[row]).nonzero().flatten().tolist() == expected


def test_rows_that_ask_for_nothing_are_left_as_they_are() -> None:
    scaled = torch.stack((FOUR, FOUR))
    truncate(scaled, np.array([0, 1], np.int32), np.ones(2, np.float32), np.zeros(2, np.float32))
    assert torch.equal(scaled[0], FOUR)
    assert torch.isfinite(scaled[1]).tolist() == [True, False, False, False]
