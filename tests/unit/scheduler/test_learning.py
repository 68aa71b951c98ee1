"""What is learned from steps, outputs and copies, and how far it may be trusted."""

import random

import pytest

from services.scheduler.core.learning import CopyTime, OutputLength, StepTime
from services.scheduler.core.rate import DrainRate

FIXED, PER_TOKEN, PER_POSITION = 5_000.0, 120.0, 0.5


def duration(num_tokens: int, num_positions: int) -> float:
    return FIXED + PER_TOKEN * num_tokens + PER_POSITION * num_positions


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_step_time_is_found_from_steps(noise: float) -> None:
    rng = random.Random(7)
    model = StepTime()
    for _ in range(400):
        num_tokens, num_positions = rng.randint(1, 500), rng.randint(100, 50_000)
        model.learn(num_tokens, num_positions, duration(num_tokens, num_positions) * rng.uniform(1 - noise, 1 + noise))
    for num_tokens, num_positions in ((1, 100), (64, 10_000), (500, 50_000)):
        expected = duration(num_tokens, num_positions)
        assert model.predict(num_tokens, num_positions) == pytest.approx(expected, rel=0.01 + 2 * noise, abs=200)
    assert model.us_per_token == pytest.approx(PER_TOKEN, rel=0.01 + noise)


def test_nothing_is_claimed_before_enough_was_seen() -> None:
    model = StepTime()
    assert not model.is_known and model.predict(10, 10) == 0.0 and model.us_per_token == 0.0
    for _ in range(8):
        assert not model.is_known
        model.learn(4, 100, 500.0)
    assert model.is_known


def test_a_device_that_changes_is_followed() -> None:
    rng = random.Random(1)
    model = StepTime()
    for factor in (1.0, 3.0):
        for _ in range(1500):
            num_tokens, num_positions = rng.randint(1, 500), rng.randint(100, 50_000)
            model.learn(num_tokens, num_positions, factor * duration(num_tokens, num_positions))
    assert model.predict(100, 10_000) == pytest.approx(3 * duration(100, 10_000), rel=0.01)


def test_hours_of_the_same_step_do_no_harm() -> None:
    """Directions that are never excited are forgotten for ever; the first different step must still make sense."""
    model = StepTime()
    for _ in range(20_000):
        model.learn(32, 10_000, duration(32, 10_000))
    assert model.predict(32, 10_000) == pytest.approx(duration(32, 10_000), rel=1e-3)
    for num_tokens in (64, 16, 128, 300, 32) * 20:
        model.learn(num_tokens, 10_000, duration(num_tokens, 10_000))
    assert model.predict(200, 10_000) == pytest.approx(duration(200, 10_000), rel=0.01)


def test_no_time_is_negative() -> None:
    model = StepTime()
    for num_tokens in (100, 90, 80, 70, 60, 50, 40, 30) * 4:  # fewer tokens take longer, against all sense
        model.learn(num_tokens, 1000, 10_000 - 90.0 * num_tokens)
    assert model.us_per_token == 0.0
    assert model.predict(500, 1000) == 0.0


def test_output_lengths_have_a_mean_and_a_spread() -> None:
    rng = random.Random(3)
    lengths = OutputLength()
    assert not lengths.is_known
    for _ in range(3000):
        lengths.learn(rng.choice([50, 150]))
    assert lengths.is_known
    assert lengths.likely(0) == pytest.approx(100, abs=15)
    assert lengths.likely(1) - lengths.likely(0) == pytest.approx(50, abs=5)


def test_equal_outputs_have_no_spread() -> None:
    lengths = OutputLength()
    for _ in range(20):
        lengths.learn(30)
    assert lengths.likely(0) == lengths.likely(5) == 30


def test_output_lengths_follow_a_change() -> None:
    lengths = OutputLength()
    for length in [20] * 500 + [200] * 500:
        lengths.learn(length)
    assert lengths.likely(0) == pytest.approx(200, abs=1)


def test_a_small_copy_says_little_of_what_a_block_costs() -> None:
    copies = CopyTime()
    assert copies.us_per_block is None
    copies.learn(200, 20_000.0)
    assert copies.us_per_block == 100.0
    copies.learn(1, 5_000.0)
    assert copies.us_per_block is not None and 100.0 < copies.us_per_block < 150.0
    for _ in range(30):
        copies.learn(200, 100_000.0)
    assert copies.us_per_block == pytest.approx(500.0, rel=0.01), "a link that became slower is noticed"


def test_the_drain_rate_is_that_of_the_last_endings() -> None:
    rate = DrainRate()
    second = 1_000_000_000
    assert rate.per_second(second) == 0.0 and rate.retry_after_ms(second, 50) == 1000
    rate.note(0)
    assert rate.per_second(second) == 0.0, "one ending is no rate"
    for number in range(1, 200):
        rate.note(number * second // 10)
    assert rate.per_second(199 * second // 10) == pytest.approx(10, rel=0.02)
    assert rate.retry_after_ms(199 * second // 10, 50) == pytest.approx(500, rel=0.02)
    assert rate.per_second(1000 * second) < 0.1, "and falls while nobody ends"


def test_retry_hints_have_bounds() -> None:
    rate = DrainRate()
    for number in range(10):
        rate.note(number)
    assert rate.retry_after_ms(10, 1) == 100
    assert rate.retry_after_ms(10**15, 10_000) == 30_000
