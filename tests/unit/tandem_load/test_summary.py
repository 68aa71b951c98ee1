"""Figures of runs, on calls whose every time is written down."""

import pytest

from tandem.load.calls import OK, Call
from tandem.load.duel import ratios
from tandem.load.summary import Spread, Targets, percentile, spread, summarize


def call(sent: float, messages: list[tuple[float, int]], status: str = OK, due: float | None = None) -> Call:
    made = Call(due=sent if due is None else due, sent=sent, status=status, num_prompt_tokens=10)
    for time, count in messages:
        made.bring(time, count)
    made.num_output_tokens = sum(made.counts)
    made.ended = messages[-1][0] if messages else sent
    return made


STEADY = call(0.0, [(0.5, 1), (0.6, 1), (0.7, 1)])
MERGED = call(0.1, [(0.6, 2), (1.0, 4)], due=0.05)


def test_every_figure_of_two_calls() -> None:
    summary = summarize([[STEADY, MERGED]], Targets(ttft_ms=600, itl_ms=200))
    assert (summary.num_calls, summary.num_ok, summary.failures) == (2, 2, {})
    assert (summary.num_output_tokens, summary.num_input_tokens) == (9, 20)
    assert summary.duration_s == pytest.approx(1.0)
    assert summary.output_tokens_per_s == pytest.approx(9) and summary.input_tokens_per_s == pytest.approx(20)
    assert summary.tokens_per_message == pytest.approx(9 / 5)
    assert summary.ttft_ms.p50 == pytest.approx(500) and summary.ttft_ms.p99 == pytest.approx(500)
    for spread_ms, least, most in [
        (summary.itl_ms, 100, 400),
        (summary.tpot_ms, 100, 100),
        (summary.e2e_ms, 700, 900),
        (summary.send_lag_ms, 0, 50),
    ]:
        assert [spread_ms.p50, spread_ms.p99] == pytest.approx([least, most])


def test_goodput_wants_both_targets() -> None:
    for targets, num_good in [
        (Targets(ttft_ms=600, itl_ms=500), 2),
        (Targets(ttft_ms=600, itl_ms=200), 1),
        (Targets(ttft_ms=499, itl_ms=500), 0),
    ]:
        summary = summarize([[STEADY, MERGED]], targets)
        assert [summary.good_share, summary.goodput_per_s] == pytest.approx([num_good / 2, num_good])


def test_a_call_that_failed_counts_as_such_and_for_nothing_else() -> None:
    failed = call(0.2, [(0.3, 50)], status="QUEUE_FULL")
    summary = summarize([[STEADY, MERGED, failed]], Targets())
    assert (summary.num_calls, summary.num_ok, summary.failures) == (3, 2, {"QUEUE_FULL": 1})
    assert summary.num_output_tokens == 9 and summary.good_share <= 2 / 3


def test_runs_are_summed_without_the_time_between_them() -> None:
    later = call(100.0, [(100.5, 1), (101.0, 8)])
    summary = summarize([[STEADY, MERGED], [later]], Targets())
    assert summary.duration_s == pytest.approx(2.0) and summary.output_tokens_per_s == pytest.approx(9)


def test_nothing_but_failures_has_no_figures_and_no_ratio() -> None:
    dead = summarize([[call(0.0, [], status="ClientConnectorError")]], Targets())
    assert dead.output_tokens_per_s == 0 and dead.ttft_ms == Spread(0, 0, 0) and dead.failures != {}
    alive = summarize([[STEADY]], Targets())
    assert ratios({("c=1", "tandem"): alive, ("c=1", "peer"): dead}, "tandem") == {}
    assert ratios({("c=1", "tandem"): alive, ("c=1", "peer"): alive}, "tandem") == {"c=1": {"peer": 1.0}}


def test_percentiles_are_of_the_nearest_rank() -> None:
    ordered = [float(value) for value in range(1, 11)]
    assert [percentile(ordered, percent) for percent in (1, 10, 50, 90, 99, 100)] == [1, 1, 5, 9, 10, 10]
    assert spread([0.002, 0.001]) == Spread(1.0, 2.0, 2.0)
