"""What the policies promise, held against the scheduler itself over a counting device."""

import pytest
from msgspec.structs import replace

from services.scheduler.core.policy import FAIR, FCFS
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.sequence import Tenant
from services.scheduler.core.tenant import DECODE_WEIGHT, PREFILL_WEIGHT
from services.scheduler.virtual.device import LLAMA_8B, NS_PER_S, DeviceModel
from services.scheduler.virtual.engine import Engine
from services.scheduler.virtual.journal import Journal
from services.scheduler.virtual.metrics import NS_PER_MS, percentile, summarize
from services.scheduler.virtual.scenarios import (
    QUICK_COMPUTE,
    QUICK_LINK,
    SCENARIOS,
    TARGETS,
    Mode,
    batching,
    limits,
    memory,
    storm_on,
    tenants,
    textbook,
)
from services.scheduler.virtual.workload import Demand, Kind, Workload, always, closed_loop

# Batching ---------------------------------------------------------------------------------------------------------


def test_the_textbook_batch_idles_as_the_textbook_says_and_continuous_batching_idles_no_slot() -> None:
    static, continuous = (case.run() for case in textbook(0))
    assert sum(step.num_slots for step in static.steps) == 4000
    assert sum(step.num_idle for step in static.steps) == 3150
    assert [step.num_idle for step in continuous.steps] == [0] * 500
    assert all(step.num_waiting for step in continuous.steps[:400])


def test_chunks_and_a_target_take_the_long_gaps_out_of_continuous_batching() -> None:
    """At the same throughput whole prompts stall the decoders; a static batch leaves slots idle while work waits."""
    static, whole, chunked, target = (summarize(case.run(), TARGETS) for case in batching(seed=1, count=120))
    assert whole.all.itl_p99_ms > 4 * chunked.all.itl_p99_ms > 4 * 25
    assert target.all.itl_p99_ms < 1.1 * 25 < chunked.all.itl_p99_ms
    assert target.all.output_tokens_per_s > 0.95 * whole.all.output_tokens_per_s
    assert static.idle_while_waiting_share > 0.5 and whole.idle_while_waiting_share == 0
    assert static.all.ttft_p50_ms > 10 * target.all.ttft_p50_ms
    assert min(chunked.goodput_per_s, target.goodput_per_s) > 3 * max(static.goodput_per_s, whole.goodput_per_s)


# Fairness ---------------------------------------------------------------------------------------------------------


def test_a_flood_at_most_doubles_what_a_quiet_tenant_waits_and_first_come_first_served_does_not_hold_that() -> None:
    cases = [case for case in tenants(seed=0, num_quiet=25) if case.label != "fair, no head start"]
    alone, fair, fcfs = (summarize(case.run(), TARGETS).tenants["quiet"] for case in cases)
    assert fair.ttft_p99_ms <= 2 * alone.ttft_p99_ms
    assert fcfs.ttft_p99_ms > 20 * alone.ttft_p99_ms


def yet_to_be_charged(scheduler: Scheduler, tenant: Tenant) -> int:
    """What a tenant's running sequences may still be given."""
    total = 0
    for run in scheduler.state.running:
        sequence = run.sequence
        if sequence.tenant is tenant:
            total += PREFILL_WEIGHT * (sequence.num_prompt_tokens - sequence.num_charged_tokens)
            total += DECODE_WEIGHT * (sequence.limit - len(sequence.tokens))
    return total


@pytest.mark.parametrize("head_start", [0, 4096])
def test_the_gap_in_service_of_two_backlogged_tenants_is_within_its_bound(head_start: int) -> None:
    """A tenant that is ahead gains only by what runs already, so the gap is never more than what the running sequences
    of one tenant had yet to be charged, and the head start."""
    readers = closed_loop(Kind(always(2_000), always(20), "readers"), 150, 60, seed=1)
    writers = closed_loop(Kind(always(50), always(300), "writers"), 250, 60, seed=2)
    gaps: list[int] = []
    owed = 0

    def watch(scheduler: Scheduler) -> None:
        nonlocal owed
        backlogged = {sequence.tenant.name: sequence.tenant for sequence in scheduler.state.waiting}
        if len(backlogged) == 2:
            gaps.append(abs(backlogged["readers"].served - backlogged["writers"].served))
        for tenant in {run.sequence.tenant.name: run.sequence.tenant for run in scheduler.state.running}.values():
            owed = max(owed, yet_to_be_charged(scheduler, tenant))

    Engine(LLAMA_8B, limits(512, 48, head_start=head_start), FAIR, watch).run(readers + writers)
    assert len(gaps) > 500
    assert max(gaps) <= owed + PREFILL_WEIGHT * head_start
    assert max(gaps) < 0.2 * (150 * 2_040 + 250 * 650) * PREFILL_WEIGHT, "the bound is no bound on all there is"


# The inter-token target -------------------------------------------------------------------------------------------

NUM_DECODERS, NUM_DOCUMENTS, DOCUMENT = 32, 16, 4_000
SHAKY = replace(LLAMA_8B, jitter=0.1)


def flooded(target_ms: int, quantum: int) -> tuple[list[int], list[int]]:
    """Gaps of 32 decoders, and times to the first token of sixteen documents that come at once when all decode."""
    decoders = tuple(Demand(0, 200, 700, "decoders") for _ in range(NUM_DECODERS))
    documents = tuple(Demand(NS_PER_S, DOCUMENT, 1, "documents") for _ in range(NUM_DOCUMENTS))
    bounds = limits(8_192, 64, inter_token_us=target_ms * 1000, prefill_quantum=quantum)
    records = Engine(SHAKY, bounds, FCFS).run(Workload(decoders + documents)).records
    gaps = sorted(gap for record in records if record.demand.tenant == "decoders" for gap in record.gaps)
    return gaps, [record.ttft_ns for record in records if record.demand.tenant == "documents"]


def longest_decode_step_ns() -> float:
    """All decoders at their end, and the documents read by then."""
    num_positions = NUM_DECODERS * 900 + NUM_DOCUMENTS * DOCUMENT
    return LLAMA_8B.step_ns(0, NUM_DECODERS, num_positions) * 1.1


def test_a_flood_of_long_prompts_leaves_decoders_within_their_target_and_is_read_in_bounded_time() -> None:
    """Bound: each step has room for k = (target - longest decode step) / time of a token, so that all T prompt tokens
    are read within T / k steps, and those in flight at arrival, of 1.1 targets each."""
    target_ms = 20
    gaps, ttfts = flooded(target_ms, quantum=0)
    assert percentile(gaps, 99) <= 1.5 * target_ms * NS_PER_MS
    room = (target_ms * NS_PER_MS - longest_decode_step_ns()) * LLAMA_8B.compute_rate / NS_PER_S
    num_steps = NUM_DOCUMENTS * DOCUMENT / room + 2
    assert max(ttfts) <= num_steps * 1.1 * target_ms * NS_PER_MS
    untamed, _ = flooded(0, quantum=0)
    assert percentile(untamed, 99) > 10 * target_ms * NS_PER_MS, "without a target they stall"


def test_under_a_target_that_cannot_be_met_prefill_keeps_its_quantum() -> None:
    quantum = 128
    gaps, ttfts = flooded(1, quantum)
    step = longest_decode_step_ns() + 1.1 * quantum * NS_PER_S / LLAMA_8B.compute_rate
    assert percentile(gaps, 99) <= step
    assert max(ttfts) <= (NUM_DOCUMENTS * DOCUMENT / quantum + NUM_DOCUMENTS + 2) * step


# Preemption -------------------------------------------------------------------------------------------------------

SIZES = (250, 800)


def check_storm(journal: Journal, copies: bool) -> None:
    """Somebody advances in every step, but where all that runs waits for a copy. Nobody is preempted more often than
    others came before: it comes back when all it has finds room, which takes that one of those ends."""
    num_idle = sum(step.num_rows == 0 for step in journal.steps)
    assert num_idle <= (0.01 * len(journal.steps) if copies else 0)
    counts = [record.num_preemptions for record in journal.records]
    assert all(count <= place for place, count in enumerate(counts)) and max(counts) <= 4
    assert journal.num_preemptions > 5, "no storm"


@pytest.mark.parametrize("model", [QUICK_LINK, QUICK_COMPUTE], ids=lambda model: str(model.name))
def test_in_a_storm_of_preemptions_all_advance_and_auto_is_as_quick_as_the_better_way(model: DeviceModel) -> None:
    modes: tuple[Mode, ...] = ("recompute", "swap", "auto")
    took: dict[Mode, float] = {}
    for mode in modes:
        journal = storm_on(model, mode, SIZES).run()
        check_storm(journal, copies=mode != "recompute")
        took[mode] = summarize(journal, TARGETS).duration_s
    better: Mode = "swap" if model is QUICK_LINK else "recompute"
    worse: Mode = "recompute" if model is QUICK_LINK else "swap"
    assert took[worse] > 1.05 * took[better], "the device is not what it is meant to be"
    assert took["auto"] <= 1.02 * took[better]


def test_looking_ahead_spares_most_preemptions_and_pays() -> None:
    """Outputs with a long tail, and always more requests than there are KV blocks for."""
    ahead, blind = (summarize(case.run(), TARGETS) for case in memory(seed=1)[:2])
    assert ahead.num_preemptions < 0.25 * blind.num_preemptions
    assert ahead.all.output_tokens_per_s > 1.05 * blind.all.output_tokens_per_s


def test_every_scenario_has_a_name_of_its_own() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names) == 6
