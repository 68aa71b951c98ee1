"""Logprobs of outputs and prompts: how many candidates, their ranks, and values of the raw logits alone."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from services.wire import columns
from services.wire.messages import Op, RowFlag, Sampling
from tests.unit.executor.fake_model import fake_backend
from tests.unit.executor.rig import Driver, Row, append, candidates_of, init, tokens_of

VOCAB = 40
PROMPT = [3, 17, 4, 25, 9, 31, 8]


def logits_of(token: int, position: int) -> Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(100 * token + position)) * 2


def expected(token: int, position: int, chosen: int, k: int) -> list[tuple[int, int, float]]:
    """By definition: the chosen one, then the top k without it, ranks from 1."""
    values = logits_of(token, position).double().log_softmax(0).tolist()
    ranked = sorted(range(VOCAB), key=lambda candidate: -values[candidate])
    listed = [chosen, *(candidate for candidate in ranked[:k] if candidate != chosen)]
    return [(candidate, ranked.index(candidate) + 1, values[candidate]) for candidate in listed]


def check(candidates: list[tuple[int, int, float]], wanted: list[tuple[int, int, float]]) -> None:
    assert [candidate[:2] for candidate in candidates] == [candidate[:2] for candidate in wanted]
    assert np.allclose([value for *_, value in candidates], [value for *_, value in wanted], atol=1e-5)


@pytest.mark.parametrize("k", [0, 1, 5, 60])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_the_chosen_token_comes_first_and_the_top_k_follow_without_it(k: int, temperature: float) -> None:
    driver = Driver(fake_backend(logits_of, VOCAB))
    sampling = Sampling(temperature=temperature, logprobs=k, top_k=7)
    result = driver.run([init(1, 7, sampling, seed=5), append(1, [3, 4, 5])], [Row(1, 0, PROMPT)])
    token, position = PROMPT[-1], len(PROMPT) - 1
    for _ in range(4):
        [chosen] = tokens_of(result)
        [(row, candidates)] = candidates_of(result.logprobs)
        assert row == 0
        check(candidates, expected(token, position, chosen, k))
        assert sum(math.exp(value) for *_, value in candidates) <= 1 + 1e-6
        if temperature == 0.0:
            assert candidates[0][1] == 1
        token, position = chosen, position + 1
        result = driver.carry()


def test_only_rows_that_ask_are_reported_each_with_its_own_k() -> None:
    driver = Driver(fake_backend(logits_of, VOCAB))
    samplings = [Sampling(temperature=0.0), Sampling(logprobs=2), Sampling(logprobs=0), Sampling(temperature=0.0)]
    ops = [op for slot, one in enumerate(samplings, 1) for op in (init(slot, 1, one), append(slot, [slot]))]
    result = driver.run(ops, [Row(slot, 0, [slot + 10]) for slot in range(1, 5)])
    reported = candidates_of(result.logprobs)
    assert [row for row, _ in reported] == [1, 2]
    for row, candidates in reported:
        check(candidates, expected(row + 11, 0, tokens_of(result)[row], [0, 2, 0][row]))


def test_equal_logits_share_a_rank() -> None:
    logits = torch.tensor([1.0, 3.0, 3.0, 2.0, 0.0])
    driver = Driver(fake_backend(lambda token, position: logits, vocab_size=5))
    sampling = Sampling(temperature=0.0, logprobs=4)
    result = driver.run([init(1, 1, sampling), append(1, [1])], [Row(1, 0, [1])])
    [(_, candidates)] = candidates_of(result.logprobs)
    assert [rank for _, rank, _ in candidates] == [1, 1, 3, 4]


def test_a_masked_token_keeps_its_raw_logprob() -> None:
    driver = Driver(fake_backend(logits_of, VOCAB))
    best = int(logits_of(11, 0).argmax())
    sampling = Sampling(temperature=0.0, logprobs=1, min_tokens=1, stop_token_ids=columns.pack([best]))
    result = driver.run([init(1, 1, sampling), append(1, [1])], [Row(1, 0, [11])])
    [(_, candidates)] = candidates_of(result.logprobs)
    [chosen] = tokens_of(result)
    assert chosen != best
    check(candidates, expected(11, 0, chosen, 1))


# Prompts -----------------------------------------------------------------------------------------------------------


def prompt_logprobs(chunk: int, k: int, known: list[int] | None = None) -> list[list[tuple[int, int, float]]]:
    """Run PROMPT (and outputs known beyond it) in chunks; the candidates of each reported token, in order."""
    driver = Driver(fake_backend(logits_of, VOCAB))
    tokens = known or PROMPT
    ops: list[Op] = [init(1, len(PROMPT), Sampling(temperature=0.0, prompt_logprobs=k)), append(1, [3, 4, 5])]
    reported: list[list[tuple[int, int, float]]] = []
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        is_last = start + chunk >= len(tokens)
        row = Row(1, start, part, samples=is_last, flags=int(RowFlag.PROMPT_LOGPROBS))
        result = driver.run(ops if start == 0 else [], [row])
        assert result.detail == ""
        reported.extend(candidates for _, candidates in candidates_of(result.prompt_logprobs))
    return reported


@pytest.mark.parametrize("chunk", [1, 2, 3, 6, 7, 8])
@pytest.mark.parametrize("k", [0, 2])
def test_every_prompt_token_but_the_first_is_scored_whatever_the_chunks(chunk: int, k: int) -> None:
    reported = prompt_logprobs(chunk, k)
    assert len(reported) == len(PROMPT) - 1
    for position, candidates in enumerate(reported):
        check(candidates, expected(PROMPT[position], position, PROMPT[position + 1], k))


@pytest.mark.parametrize("chunk", [3, 7, 8, 20])
def test_outputs_that_are_computed_again_are_no_prompt(chunk: int) -> None:
    assert len(prompt_logprobs(chunk, 0, [*PROMPT, 1, 2, 3])) == len(PROMPT) - 1


def test_a_prompt_is_scored_in_slices_of_bounded_memory() -> None:
    driver = Driver(fake_backend(logits_of, VOCAB))
    prompt = [index % VOCAB for index in range(120)]
    ops: list[Op] = [init(1, 120, Sampling(temperature=0.0, prompt_logprobs=0)), append(1, list(range(1, 31)))]
    result = driver.run(ops, [Row(1, 0, prompt, flags=int(RowFlag.PROMPT_LOGPROBS))])
    reported = candidates_of(result.prompt_logprobs)
    assert [candidates[0][0] for _, candidates in reported] == prompt[1:]
    check([reported[80][1][0]], expected(prompt[80], 80, prompt[81], 0))


# Poisoned rows -----------------------------------------------------------------------------------------------------


ASKS = [
    Sampling(temperature=0.0, logprobs=1),
    Sampling(logprobs=1),
    Sampling(logprobs=1, top_k=5, top_p=0.9, min_p=0.01),
    Sampling(logprobs=1, repetition_penalty=1.3, frequency_penalty=0.5),
    Sampling(logprobs=1, allowed_token_ids=columns.pack([1, 2, 3, 20]), bad_words=(columns.pack([20]),)),
]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("asks", ASKS, ids=range(len(ASKS)))
def test_logits_that_are_not_finite_fail_their_row_alone(poison: float, asks: Sampling) -> None:
    seen: list[tuple[int, int]] = []

    def poisoned_at_four(token: int, position: int) -> Tensor:
        seen.append((token, position))
        logits = logits_of(token, position)
        if token == 4:
            logits[20] = poison
        return logits

    driver = Driver(fake_backend(poisoned_at_four, VOCAB))
    inits = [init(slot, 1, asks, seed=slot, known=[token]) for slot, token in ((1, 11), (2, 4), (3, 12))]
    ops: list[Op] = [op for one in inits for op in (one, append(one.slot, [one.slot]))]
    bad = driver.run(ops, [Row(1, 0, [11]), Row(2, 0, [4]), Row(3, 0, [12])])
    alone = Driver(fake_backend(logits_of, VOCAB)).run([*ops[:2], *ops[4:]], [Row(1, 0, [11]), Row(3, 0, [12])])
    assert tokens_of(bad) == tokens_of(alone)
    assert [failed.row for failed in bad.failed_rows] == [1]
    assert columns.unpack(bad.n_out).tolist() == [1, 0, 1]
    assert [row for row, _ in candidates_of(bad.logprobs)] == [0, 2]
    later = driver.carry()
    assert [failed.row for failed in later.failed_rows] == [1]
    assert [row for row, _ in candidates_of(later.logprobs)] == [0, 2]
    assert seen[4] == (0, 1)  # its last token became 0
