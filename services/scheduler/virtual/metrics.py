"""What a run was worth: throughput, latencies, idle slots, preemptions, waste and goodput, whole and by tenant.

Percentiles are of the nearest rank. Goodput counts the requests that met both targets: the time to the first token,
and a gap between tokens that 99 in 100 of the request's own stay within.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from services.scheduler.virtual.device import NS_PER_S
from services.scheduler.virtual.journal import Journal, RequestRecord, StepFacts

NS_PER_MS = 1_000_000


class Targets(Struct, frozen=True):
    """What a client would call good."""

    ttft_ms: float = 1000.0
    itl_ms: float = 50.0


class Latencies(Struct, frozen=True):
    """Milliseconds. ttft: time to the first token. itl: inter-token latency, over all gaps of all requests."""

    num_requests: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    output_tokens_per_s: float


class Summary(Struct, frozen=True):
    """One run. Shares are of slot steps (slots x steps) or of computed tokens, between 0 and 1."""

    all: Latencies
    tenants: dict[str, Latencies]
    duration_s: float
    total_tokens_per_s: float  # prompts and outputs
    num_steps: int
    idle_share: float  # slots without a row
    idle_while_waiting_share: float  # those in steps that left somebody waiting
    num_preemptions: int
    most_preemptions: int  # of one request
    num_wasted_rows: int  # sampled for nobody
    num_copied_blocks: int  # either way
    recomputed_share: float  # tokens computed more than once
    goodput_per_s: float
    good_share: float


def summarize(journal: Journal, targets: Targets) -> Summary:
    """Sum up a run that has ended."""
    records = journal.records
    duration_ns = max(record.t_end for record in records) - min(record.t_arrived for record in records)
    names = sorted({record.demand.tenant for record in records})
    by_tenant = {name: [record for record in records if record.demand.tenant == name] for name in names}
    num_good = sum(is_good(record, targets) for record in records)
    num_tokens = sum(record.demand.num_prompt_tokens + record.demand.num_output_tokens for record in records)
    num_computed = sum(step.num_tokens for step in journal.steps)
    num_needed = num_tokens - len(records)  # nobody computes the last output token
    return Summary(
        all=latencies(records, duration_ns),
        tenants={name: latencies(own, duration_ns) for name, own in by_tenant.items()},
        duration_s=duration_ns / NS_PER_S,
        total_tokens_per_s=num_tokens * NS_PER_S / duration_ns,
        num_steps=len(journal.steps),
        idle_share=idle_share(journal.steps),
        idle_while_waiting_share=idle_share(journal.steps, only_waiting=True),
        num_preemptions=journal.num_preemptions,
        most_preemptions=max(record.num_preemptions for record in records),
        num_wasted_rows=journal.num_wasted_rows,
        num_copied_blocks=journal.num_copied_blocks,
        recomputed_share=(num_computed - journal.num_wasted_rows - num_needed) / num_computed,
        goodput_per_s=num_good * NS_PER_S / duration_ns,
        good_share=num_good / len(records),
    )


def latencies(records: Sequence[RequestRecord], duration_ns: int) -> Latencies:
    """Of some requests of a run that took so long."""
    ttfts = sorted(record.ttft_ns for record in records)
    gaps = sorted(gap for record in records for gap in record.gaps)
    num_output = sum(record.demand.num_output_tokens for record in records)
    return Latencies(
        num_requests=len(records),
        ttft_p50_ms=percentile(ttfts, 50) / NS_PER_MS,
        ttft_p99_ms=percentile(ttfts, 99) / NS_PER_MS,
        itl_p50_ms=percentile(gaps, 50) / NS_PER_MS,
        itl_p99_ms=percentile(gaps, 99) / NS_PER_MS,
        output_tokens_per_s=num_output * NS_PER_S / duration_ns,
    )


def is_good(record: RequestRecord, targets: Targets) -> bool:
    """Whether a request met both targets."""
    gap_ns = percentile(sorted(record.gaps), 99)
    return record.ttft_ns <= targets.ttft_ms * NS_PER_MS and gap_ns <= targets.itl_ms * NS_PER_MS


def percentile(values: Sequence[int], percent: int) -> int:
    """The value of the nearest rank among sorted ones; 0 when there are none."""
    return values[-(-len(values) * percent // 100) - 1] if values else 0


def idle_share(steps: Iterable[StepFacts], only_waiting: bool = False) -> float:
    """Slot steps without a row, of all; only_waiting: only those that a waiting sequence might have had."""
    steps = list(steps)
    num_slot_steps = sum(step.num_slots for step in steps)
    num_idle = sum(step.num_idle for step in steps if step.num_waiting or not only_waiting)
    return num_idle / num_slot_steps
