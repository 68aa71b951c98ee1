"""Drawing on the device: the kernels against plain torch, the noise against the product's hash, cuts by definition."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from services.executor import reference
from services.executor.cuda import gumbel
from services.executor.cuda.asks import asks_of
from services.executor.draws import draw_bits, mix
from services.executor.sampling_state import SamplingState
from services.wire.messages import Sampling
from tests.unit.executor.rig import init

pytest.importorskip("triton", reason="triton has no wheel for this machine")

from services.executor.cuda import draw_kernels

IMPLEMENTATIONS = {"torch": gumbel.draw, "triton": draw_kernels.draw}


def row_bits(num_rows: int, seed: int = 0) -> Tensor:
    seeds = np.arange(seed, seed + num_rows, dtype=np.uint64)
    return torch.from_numpy(draw_bits(seeds, np.full(num_rows, 3)).view(np.int64))


def drawn(name: str, logits: Tensor, temperatures: Tensor, bits: Tensor) -> tuple[list[int], list[int]]:
    out = torch.full((2, len(logits)), -7, dtype=torch.int32)
    IMPLEMENTATIONS[name](logits, temperatures, bits, out)
    tokens, is_finite = out.tolist()
    return tokens, is_finite


def test_the_noise_of_a_token_is_the_products_hash_of_seed_output_and_token() -> None:
    bits = row_bits(5, seed=2**63 - 2)
    tokens = np.array([0, 1, 7, 128_255])
    expected = mix(
        bits.numpy().view(np.uint64)[:, None]
        + (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    )
    found = gumbel.token_bits(bits, torch.from_numpy(tokens))
    assert np.array_equal(found.numpy().view(np.uint64), expected)


@pytest.mark.parametrize("vocab_size", [1, 5, 1024, 1500])
def test_the_kernels_draw_what_plain_torch_draws(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(9, vocab_size, generator=generator) * 4
    temperatures = torch.tensor([0.0, 1.0, 0.3, 5.0, 1e-20, 0.0, 1.0, 1.0, 2.0])
    expected, found = (drawn(name, logits, temperatures, row_bits(9)) for name in IMPLEMENTATIONS)
    assert found == expected
    assert expected[0][0] == int(logits[0].argmax()) and expected[0][4] == int(logits[4].argmax())


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_rows_that_are_not_finite_are_told_apart_and_draw_0(name: str) -> None:
    logits = torch.zeros(4, 1100)
    logits[:, 1050] = 9.0
    for row, value in ((0, math.nan), (1, math.inf), (3, -math.inf)):
        logits[row, 1025] = value
    assert drawn(name, logits, torch.zeros(4), row_bits(4)) == ([0, 0, 1050, 0], [0, 0, 1, 0])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_no_rows_are_no_matter(name: str) -> None:
    assert drawn(name, torch.zeros(0, 10), torch.zeros(0), row_bits(0)) == ([], [])


def test_of_equal_logits_the_lower_id_wins() -> None:
    logits = torch.zeros(1, 2000)
    logits[0, [700, 1700]] = 3.0
    for name in IMPLEMENTATIONS:
        assert drawn(name, logits, torch.zeros(1), row_bits(1))[0] == [700]


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    """20,000 seeds; a frequency may be off by five standard deviations."""
    num_draws, temperature = 20_000, 0.8
    row = torch.tensor([2.0, 0.0, -1.0, 1.5, -8.0, 0.5])
    tokens, _ = drawn("torch", row.expand(num_draws, -1), torch.full((num_draws,), temperature), row_bits(num_draws))
    expected = (row / temperature).softmax(-1).numpy()
    found = np.bincount(tokens, minlength=len(row)) / num_draws
    assert (np.abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / num_draws) + 1e-9).all()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_cut_is_what_the_definition_cuts(seed: int) -> None:
    vocab_size = 50
    asks = [
        Sampling(temperature=t, top_k=k, top_p=p, min_p=m)
        for t, k, p, m in [(1.0, 5, 1.0, 0.0), (0.7, 0, 0.8, 0.0), (1.5, 0, 1.0, 0.2), (1.0, 9, 0.6, 0.05)]
    ]
    logits = torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(seed)).mul_(3).round_(decimals=1)
    before, rows = logits.clone(), torch.tensor([0, 2, 3, 5])
    state = SamplingState(len(asks) + 1, 100)
    for slot, ask in enumerate(asks, 1):
        state.init(init(slot, sampling=ask))
    slots = np.arange(1, len(asks) + 1, dtype=np.int32)
    asked = asks_of(state.rows(slots, np.full(len(asks), 5, np.int32)), np.zeros(0, np.int64), vocab_size)
    assert asked.cut_rows.tolist() == [0, 1, 2, 3] and not len(asked.host_rows)
    gumbel.cut(logits, rows, torch.from_numpy(asked.limits))
    for row, ask in zip(rows.tolist(), asks, strict=True):
        indices, _ = reference.kept(init(1, sampling=ask), before[row].double().numpy())
        assert np.flatnonzero(logits[row] > gumbel.CUT).tolist() == sorted(indices.tolist())
        assert torch.equal(logits[row, indices], before[row, indices])
    assert torch.equal(logits[[1, 4]], before[[1, 4]])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_cut_hides_no_logit_that_is_not_finite(value: float) -> None:
    logits = torch.zeros(1, 8)
    logits[0, 3] = value
    gumbel.cut(logits, torch.tensor([0]), torch.tensor([[1.0, 1.0, 0.1, 0.9]]))
    assert drawn("torch", logits, torch.ones(1), row_bits(1)) == ([0], [0])
