"""The sampler against its definition: thousands of rows that ask for anything, and the distributions it draws from."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from services.executor import reference
from services.executor.batch import F64
from services.wire import columns
from services.wire.messages import Sampling
from tests.unit.executor.sampling_rig import (
    DrawnRow,
    biased,
    by_definition,
    draw,
    random_logits,
    random_row,
    scores_by_definition,
)

ROWS_AT_ONCE = 50


def check_rows(batch: int) -> None:
    """Fifty rows that share a step and nothing else."""
    rng = random.Random(batch)
    vocab_size = rng.choice([50, 64, 192, 320, 1000])
    rows = [random_row(rng, vocab_size) for _ in range(ROWS_AT_ONCE)]
    logits = random_logits(ROWS_AT_ONCE, vocab_size, batch)
    expected = [by_definition(own.numpy(), row) for own, row in zip(logits.clone(), rows, strict=True)]
    sampled = draw(logits, rows)
    tokens = [None if stuck else token for token, stuck in zip(sampled.tokens.tolist(), sampled.stuck, strict=True)]
    for token, wanted, row in zip(tokens, expected, rows, strict=True):
        assert token == wanted, f"batch {batch}: {token} where {wanted} was due, of {row}"


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_rows_draw_what_the_definition_says(first: int) -> None:
    for batch in range(first, first + 10):
        check_rows(batch)


@pytest.mark.soak
def test_ten_thousand_random_rows_draw_what_the_definition_says() -> None:
    for batch in range(10_000 // ROWS_AT_ONCE):
        check_rows(batch)


# Distributions -----------------------------------------------------------------------------------------------------

SEED, NUM_DRAWS, VOCAB = 20_240, 6000, 64
PROMPT, OUTPUTS = [1, 5, 9], [5, 7, 7, 30]
DISTRIBUTIONS: dict[str, Sampling] = {
    "temperature 1": Sampling(),
    "temperature 0.6": Sampling(temperature=0.6),
    "temperature 2": Sampling(temperature=2.0),
    "top_k 5": Sampling(top_k=5),
    "top_p 0.8": Sampling(top_p=0.8),
    "min_p 0.1": Sampling(min_p=0.1),
    "top_k 20, top_p 0.7, min_p 0.05": Sampling(temperature=1.3, top_k=20, top_p=0.7, min_p=0.05),
    "repetition_penalty 1.5": Sampling(repetition_penalty=1.5),
    "presence 1, frequency 0.7": Sampling(presence_penalty=1.0, frequency_penalty=0.7),
    "biases": biased({3: 2.0, 40: -3.0, 60: 4.0}, temperature=0.9),
    "allowed_token_ids": Sampling(temperature=1.5, allowed_token_ids=columns.pack([2, 3, 5, 7, 11, 13, 17])),
    "bad words and min_tokens": Sampling(
        bad_words=(columns.pack([7, 30, 4]), columns.pack([8])), min_tokens=9, stop_token_ids=columns.pack([5, 6])
    ),
}


def probabilities(logits: "np.ndarray[tuple[int], np.dtype[np.float32]]", row: DrawnRow) -> F64:
    """[vocab] by the definition."""
    indices, weights = reference.kept(row.op(), scores_by_definition(logits, row))
    exact = np.zeros(len(logits))
    exact[indices] = weights / weights.sum()
    return exact


def survival(statistic: float, degrees: int) -> float:
    """How likely a chi-square variable is to exceed the statistic (Wilson and Hilferty's cube root, 1931)."""
    scale = 2 / (9 * degrees)
    return 0.5 * math.erfc((((statistic / degrees) ** (1 / 3) - (1 - scale)) / math.sqrt(scale)) / math.sqrt(2))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_follow_the_exact_distribution(name: str) -> None:
    row = DrawnRow(DISTRIBUTIONS[name], PROMPT, OUTPUTS)
    logits = random_logits(1, VOCAB, seed=SEED)[0] / 2
    exact = probabilities(logits.numpy(), row)
    rows = [replace(row, seed=SEED + number) for number in range(NUM_DRAWS)]
    observed = np.bincount(draw(logits.repeat(NUM_DRAWS, 1), rows).tokens, minlength=VOCAB)
    assert not observed[exact == 0].any()
    # Tokens too rare for the statistic are counted as one.
    order = np.argsort(-exact)
    is_common = exact[order] * NUM_DRAWS >= 8
    expected = np.append(exact[order][is_common], exact[order][~is_common].sum()) * NUM_DRAWS
    counts = np.append(observed[order][is_common], observed[order][~is_common].sum())
    filled = expected > 1e-9
    statistic = float(((counts - expected)[filled] ** 2 / expected[filled]).sum())
    p_value = survival(statistic, int(filled.sum()) - 1)
    print(f"{name}: chi-square {statistic:.1f} of {filled.sum() - 1} degrees, p = {p_value:.3f}")
    assert p_value > 0.001


def test_a_definition_without_a_token_left_says_so() -> None:
    row = DrawnRow(Sampling(), allowed=[])
    assert by_definition(torch.zeros(8).numpy(), row) is None
