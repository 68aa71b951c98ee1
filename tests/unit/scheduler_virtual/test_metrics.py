"""Summing up: percentiles, shares and goodput of a small journal worked out by hand."""

import pytest

from services.scheduler.virtual.journal import Journal, StepFacts
from services.scheduler.virtual.metrics import NS_PER_MS, Targets, idle_share, is_good, percentile, summarize
from services.scheduler.virtual.workload import Demand


def journal() -> Journal:
    """Two requests of tenants a and b: first tokens after 10 and 30 ms, gaps of 5 and of 5 and 45 ms."""
    journal = Journal()
    for tenant, at, num_output, times in (("a", 0, 2, (10, 15)), ("b", 0, 3, (30, 35, 80))):
        record = journal.records[journal.open(Demand(at, 8, num_output, tenant), at)]
        for time in times:
            record.note_token(time * NS_PER_MS)
        record.t_end = times[-1] * NS_PER_MS
        record.num_stays = 1
    journal.records[1].num_stays = 3
    journal.steps += [StepFacts(1, 2, 16, 4, 1), StepFacts(2, 2, 5, 4, 0), StepFacts(3, 1, 2, 4, 0)]
    journal.num_wasted_rows = 1
    return journal


def test_a_journal_worked_out_by_hand() -> None:
    summary = summarize(journal(), Targets(ttft_ms=20, itl_ms=50))
    assert summary.duration_s == 0.08
    assert summary.all.output_tokens_per_s == pytest.approx(5 / 0.08)
    assert summary.total_tokens_per_s == pytest.approx(21 / 0.08)
    assert (summary.all.ttft_p50_ms, summary.all.ttft_p99_ms) == (10, 30)
    assert (summary.all.itl_p50_ms, summary.all.itl_p99_ms) == (5, 45)
    assert (summary.tenants["b"].ttft_p50_ms, summary.tenants["b"].itl_p99_ms) == (30, 45)
    assert (summary.num_preemptions, summary.most_preemptions) == (2, 2)
    assert summary.idle_share == 7 / 12 and summary.idle_while_waiting_share == 2 / 12
    assert summary.recomputed_share == pytest.approx((23 - 1 - 19) / 23)
    assert summary.good_share == 0.5 and summary.goodput_per_s == pytest.approx(1 / 0.08)


@pytest.mark.parametrize(("ttft", "itl", "good"), [(30, 45, True), (29, 45, False), (30, 44, False)])
def test_good_is_within_both_targets(ttft: float, itl: float, good: bool) -> None:
    assert is_good(journal().records[1], Targets(ttft, itl)) is good


def test_percentiles_are_of_the_nearest_rank() -> None:
    values = list(range(1, 101))
    assert (percentile(values, 50), percentile(values, 99), percentile(values, 100)) == (50, 99, 100)
    assert percentile([3, 8], 50) == 3 and percentile([3, 8], 51) == 8
    assert percentile([], 99) == 0


def test_only_what_a_waiting_sequence_might_have_had_is_idle_while_waiting() -> None:
    steps = [StepFacts(1, 3, 3, 4, 0), StepFacts(2, 2, 2, 4, 5)]
    assert idle_share(steps) == 3 / 8 and idle_share(steps, only_waiting=True) == 2 / 8
