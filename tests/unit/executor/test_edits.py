"""Penalties, biases and bans on exact vectors, by the sampler and by the definition alike; each row for itself."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from services.executor.edits import edit
from services.executor.sampling_state import SamplingState
from services.wire import columns
from services.wire.messages import Sampling
from tests.unit.executor.fake_model import fake_backend
from tests.unit.executor.rig import Driver, Request, Row, append, generate, init, tokens_of
from tests.unit.executor.sampling_rig import DrawnRow, biased, draw, masks_of, random_logits, scores_by_definition

NO = -math.inf
LOGITS = [2.0, -2.0, 1.0, 0.0]
OUTPUTS = [0, 0, 2]


def words(*ids: list[int]) -> tuple[bytes, ...]:
    return tuple(map(columns.pack, ids))


def edited(logits: Tensor, rows: list[DrawnRow]) -> Tensor:
    """The scores that the sampler draws from."""
    state = SamplingState(len(rows) + 1, 100)
    for slot, row in enumerate(rows, 1):
        state.init(row.op(slot))
    kv_lens = np.array([len(row.tokens) for row in rows], np.int32)
    asked = state.rows(np.arange(1, len(rows) + 1, dtype=np.int32), kv_lens)
    allowed = {index: row.allowed for index, row in enumerate(rows) if row.allowed is not None}
    scores = logits.clone()
    edit(scores.numpy(), asked.edits, masks_of(allowed, logits.shape[1]) if allowed else None)
    return scores


EXACT: dict[str, tuple[DrawnRow, list[float]]] = {
    "repetition sees prompt and output": (
        DrawnRow(Sampling(repetition_penalty=2.0), [0, 1], OUTPUTS),
        [1.0, -4.0, 0.5, 0.0],
    ),
    "frequency and presence see the output alone": (
        DrawnRow(Sampling(frequency_penalty=0.5, presence_penalty=0.2), [0, 1], OUTPUTS),
        [0.8, -2.0, 0.3, 0.0],
    ),
    "a negative penalty lifts": (
        DrawnRow(Sampling(frequency_penalty=-0.5, presence_penalty=-0.25), [3], OUTPUTS),
        [3.25, -2.0, 1.75, 0.0],
    ),
    "a repetition penalty below one lifts": (
        DrawnRow(Sampling(repetition_penalty=0.5), [1], [2]),
        [2.0, -1.0, 2.0, 0.0],
    ),
    "repetition first, then what is subtracted": (
        DrawnRow(Sampling(repetition_penalty=2.0, presence_penalty=1.0), [1], [0]),
        [0.0, -4.0, 1.0, 0.0],
    ),
    "without outputs only repetition bites": (
        DrawnRow(Sampling(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=1.0), [0, 0, 1]),
        [1.0, -4.0, 1.0, 0.0],
    ),
    "a bias is added": (DrawnRow(biased({3: 5.0, 1: -1.0})), [2.0, -3.0, 1.0, 5.0]),
    "a bias comes after the penalties": (
        DrawnRow(biased({0: 3.0}, repetition_penalty=2.0), [0]),
        [4.0, -2.0, 1.0, 0.0],
    ),
    "the greatest numbers stay finite": (
        DrawnRow(biased({0: 3e38, 1: -3e38}, frequency_penalty=3e38), [3], [1, 1]),
        [3e38, -3.4028234663852886e38, 1.0, 0.0],
    ),
    "only what is allowed": (
        DrawnRow(Sampling(allowed_token_ids=columns.pack([3, 1])), [0]),
        [NO, -2.0, NO, 0.0],
    ),
    "stop tokens before min_tokens": (
        DrawnRow(Sampling(min_tokens=4, stop_token_ids=columns.pack([0, 3])), [1], OUTPUTS),
        [NO, -2.0, 1.0, NO],
    ),
    "stop tokens after min_tokens": (
        DrawnRow(Sampling(min_tokens=3, stop_token_ids=columns.pack([0, 3])), [1], OUTPUTS),
        LOGITS,
    ),
    "a bad word of one token": (DrawnRow(Sampling(bad_words=words([2])), [1]), [2.0, -2.0, NO, 0.0]),
    "a bad word whose beginning is there": (
        DrawnRow(Sampling(bad_words=words([0, 2, 3], [2, 1], [0, 0])), [1], OUTPUTS),
        [2.0, NO, 1.0, NO],
    ),
    "a bad word that began in the prompt": (
        DrawnRow(Sampling(bad_words=words([1, 0, 3])), [1], [0]),
        [2.0, -2.0, 1.0, NO],
    ),
    "a bad word longer than everything": (
        DrawnRow(Sampling(bad_words=words([9, 1, 0, 3], [1, 0, 2])), [1], [0]),
        [2.0, -2.0, NO, 0.0],
    ),
    "of words that end alike one matches": (
        DrawnRow(Sampling(bad_words=words([1, 3], [0, 3], [2, 3])), [1], [0]),
        [2.0, -2.0, 1.0, NO],
    ),
    "bits of structured output": (DrawnRow(Sampling(), allowed=[0, 3]), [2.0, NO, NO, 0.0]),
    "no bias lifts a ban": (
        DrawnRow(biased({3: 3e38}, bad_words=words([3]))),
        [2.0, -2.0, 1.0, NO],
    ),
    "what is allowed by one and banned by another is banned": (
        DrawnRow(Sampling(allowed_token_ids=columns.pack([0, 1]), bad_words=words([0])), allowed=[0, 1, 2]),
        [NO, -2.0, NO, NO],
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_the_scores_of(name: str) -> None:
    row, expected = EXACT[name]
    assert np.allclose(edited(torch.tensor([LOGITS]), [row])[0].numpy(), expected, rtol=1e-6)
    assert np.allclose(scores_by_definition(np.array(LOGITS, np.float32), row), expected, rtol=1e-6)


def test_each_row_is_edited_by_its_own_asks_alone() -> None:
    rows = [row for row, _ in EXACT.values()]
    plain = DrawnRow(Sampling(temperature=0.0))
    mixed = [row for pair in zip(rows, [plain] * len(rows), strict=True) for row in pair]
    for order in (mixed, mixed[::-1]):
        scores = edited(torch.tensor([LOGITS]).repeat(len(order), 1), order)
        for row, own in zip(order, scores, strict=True):
            assert torch.equal(own, edited(torch.tensor([LOGITS]), [row])[0])


def test_token_0_is_not_penalized_for_being_where_shorter_rows_end() -> None:
    asks = Sampling(temperature=0.0, repetition_penalty=2.0, frequency_penalty=1.0)
    rows = [DrawnRow(asks, [1], [2]), DrawnRow(asks, [1] * 9, [3] * 9)]
    scores = edited(torch.tensor([LOGITS, LOGITS]), rows)
    assert scores[0].tolist() == [2.0, -4.0, -0.5, 0.0]
    assert scores[1].tolist() == [2.0, -4.0, 1.0, -9.0]


def test_greedy_rows_see_every_edit() -> None:
    logits = random_logits(4, 100, seed=1)
    best = logits.argmax(-1).tolist()
    rows = [
        DrawnRow(biased({19: 100.0})),
        DrawnRow(biased({best[1]: -100.0})),
        DrawnRow(Sampling(temperature=0.0, repetition_penalty=50.0), [best[2]]),
        DrawnRow(Sampling(temperature=0.0, allowed_token_ids=columns.pack([4, 7]))),
    ]
    second = logits.topk(2).indices[:, 1].tolist()
    allowed = 4 if logits[3, 4] > logits[3, 7] else 7
    assert draw(logits.clone(), rows).tokens.tolist() == [19, second[1], second[2], allowed]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_row_with_everything_banned_is_stuck_and_its_neighbours_are_not(temperature: float) -> None:
    asks = Sampling(temperature=temperature, allowed_token_ids=columns.pack([3]), bad_words=words([3]), top_k=2)
    plain = DrawnRow(Sampling(temperature=temperature, top_p=0.9), seed=4)
    sampled = draw(random_logits(3, 64, seed=2), [plain, DrawnRow(asks), plain])
    assert sampled.stuck.tolist() == [False, True, False]
    assert sampled.tokens[0] == draw(random_logits(3, 64, seed=2)[:1], [plain]).tokens[0]


# Never a step late -------------------------------------------------------------------------------------------------


def constant(token: int, position: int) -> Tensor:
    logits = torch.zeros(200)
    logits[100], logits[101], logits[102] = 5.0, 4.0, 3.5
    return logits


@pytest.mark.parametrize("chunk", [1, 3])
def test_the_token_of_the_last_step_is_penalized_in_this_one(chunk: int) -> None:
    request = Request([7, 8, 9], 6, Sampling(temperature=0.0, presence_penalty=2.0), chunk=chunk)
    assert generate(fake_backend(constant, 200), [request]) == [[100, 101, 102, 100, 100, 100]]


def test_the_token_of_the_last_step_begins_a_bad_word_in_this_one() -> None:
    request = Request([7], 5, Sampling(temperature=0.0, bad_words=words([100, 100], [100, 101, 100])))
    assert generate(fake_backend(constant, 200), [request]) == [[100, 101, 101, 100, 101]]


def test_a_history_comes_back_with_its_known_tokens() -> None:
    driver = Driver(fake_backend(constant, 200))
    asks = Sampling(temperature=0.0, presence_penalty=2.0, min_tokens=4, stop_token_ids=columns.pack([102]))
    known = [7, 8, 100, 101]
    first = driver.run([init(1, 2, asks, known=known), append(1, [1, 2])], [Row(1, 0, known)])
    assert tokens_of(first) == [100]  # 3 against 2; the 3.5 of 102 must wait for four outputs
    assert tokens_of(driver.carry()) == [100]
    assert tokens_of(driver.carry()) == [102]


def test_a_history_that_is_short_fails_the_step() -> None:
    driver = Driver(fake_backend(constant, 200))
    asks = Sampling(temperature=0.0, presence_penalty=2.0)
    result = driver.run([init(1, 2, asks, known=[7, 8]), append(1, [1])], [Row(1, 0, [7, 8, 100])])
    assert "slot 1 samples after 3 tokens with a history of 2" in result.detail
