"""Request sets: seeded, from files, and when they arrive."""

from pathlib import Path

import pytest

from tandem.load.workload import Demand, Lengths, WorkloadError, bursts, generate, poisson, read

PROMPT, OUTPUT = Lengths(32, 256), Lengths(16, 128)


def test_a_made_set_is_a_function_of_its_seed() -> None:
    first, again, other = (generate(50, PROMPT, OUTPUT, 1000, seed) for seed in (7, 7, 8))
    assert first == again != other


def test_lengths_and_ids_stay_within_their_bounds_and_reach_them() -> None:
    demands = generate(3000, Lengths(2, 5), Lengths(1, 3), 7, seed=1)
    assert {len(demand.prompt) for demand in demands} == {2, 3, 4, 5}
    assert {demand.max_tokens for demand in demands} == {1, 2, 3}
    assert {token for demand in demands for token in demand.prompt} == set(range(7))


def test_poisson_arrivals_have_the_rate_and_the_spread_of_chance() -> None:
    arrivals = [demand.arrival_s for demand in poisson([Demand("x", 1)] * 20_000, per_second=50.0, seed=3)]
    gaps = [later - earlier for earlier, later in zip([0.0, *arrivals], arrivals, strict=False)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert min(gaps) >= 0 and mean == pytest.approx(1 / 50, rel=0.03)
    assert variance**0.5 == pytest.approx(mean, rel=0.05), "an exponential's deviation is its mean"


def test_bursts_come_at_once() -> None:
    assert [demand.arrival_s for demand in bursts([Demand("x", 1)] * 5, size=2, every_s=0.5)] == [0, 0, 0.5, 0.5, 1.0]


def test_a_file_keeps_its_order_and_its_times(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"text": "Hello", "max_tokens": 3}\n\n{"token_ids": [5, 6], "max_tokens": 1, "arrival_s": 0.25}\n')
    assert read(path) == (Demand("Hello", 3), Demand((5, 6), 1, 0.25))


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ('{"text": "x"}', "max_tokens"),
        ('{"max_tokens": 1}', "exactly one"),
        ('{"text": "x", "token_ids": [1], "max_tokens": 1}', "exactly one"),
        ('{"text": "x", "max_tokens": 0}', "at least 1"),
        ('{"text": "x", "max_tokens": 1, "arrival_s": -1}', "arrival_s"),
        ('{"text": "x", "max_tokens": 1, "temperatur": 1}', "temperatur"),
        ("{", "line 2"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: str, word: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"text": "Hello", "max_tokens": 3}\n' + line + "\n")
    with pytest.raises(WorkloadError) as raised:
        read(path)
    assert "line 2" in str(raised.value) and word in str(raised.value)


def test_an_empty_file_is_no_set(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text("\n")
    with pytest.raises(WorkloadError, match="no request"):
        read(path)
