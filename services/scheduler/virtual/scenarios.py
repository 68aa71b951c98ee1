"""The scenarios that show what each choice of the scheduler is worth, each a few runs over one workload.

Every run is a Case: a label, the limits and the policy it stands for, a device and a workload. Numbers follow from the
seed alone. Knows how to set the scenes, not what must come out: the tests and docs/scheduling.md say that.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from services.scheduler.core.policy import FAIR, FCFS, STATIC, Policy
from services.scheduler.core.state import Limits
from services.scheduler.virtual.device import LLAMA_8B, NS_PER_S, DeviceModel
from services.scheduler.virtual.engine import Engine
from services.scheduler.virtual.journal import Journal
from services.scheduler.virtual.metrics import Summary, Targets, summarize
from services.scheduler.virtual.workload import (
    Demand,
    Kind,
    Workload,
    always,
    closed_loop,
    log_normal,
    mixed,
    poisson,
    uniform,
)

WHOLE = 1 << 17  # tokens of a step that no prompt exceeds
TARGETS = Targets(ttft_ms=2000.0, itl_ms=50.0)

# Two devices on which the two ways of preemption are far apart: one copies quickly and computes slowly, and one the
# other way round.
QUICK_LINK = replace(LLAMA_8B, name="quick link", link_rate=100e9, compute_rate=4e3)
QUICK_COMPUTE = replace(LLAMA_8B, name="quick compute", link_rate=1e9, compute_rate=100e3)

Mode = Literal["recompute", "swap", "auto"]


@dataclass(frozen=True, slots=True)
class Case:
    """One run to make."""

    label: str
    limits: Limits
    policy: Policy
    workload: Workload
    device: DeviceModel = LLAMA_8B

    def run(self) -> Journal:
        return Engine(self.device, self.limits, self.policy).run(self.workload)


class Outcome(Struct, frozen=True):
    """What one run gave."""

    label: str
    summary: Summary
    journal: Journal


class Scenario(Struct, frozen=True):
    """cases: made from the seed."""

    name: str
    title: str
    cases: Callable[[int], list[Case]]

    def run(self, seed: int) -> Iterator[Outcome]:
        for case in self.cases(seed):
            journal = case.run()
            yield Outcome(case.label, summarize(journal, TARGETS), journal)


def limits(budget: int, slots: int, **choices: Any) -> Limits:
    """Steps of so many prefill tokens beside a decode row in every slot, nothing else bounded, two plans in flight."""
    return Limits(
        depth=2,
        token_budget=budget + slots,
        chunk_size=budget,
        max_num_seqs=slots,
        max_waiting=1_000_000,
        max_unread=1_000,
        prefix_cache=choices.pop("prefix_cache", False),  # no two prompts share a prefix
        **choices,
    )


def batching(seed: int, count: int = 300) -> list[Case]:
    """Short questions and some long documents, near the most that the device can serve."""
    prompt = mixed([(0.85, log_normal(250, 0.8, 2_000)), (0.15, log_normal(3_000, 0.5, 8_000))])
    load = poisson(Kind(prompt, log_normal(150, 0.7, 800)), count, per_second=14.0, seed=seed)
    return [
        Case("static", limits(WHOLE, 64), STATIC, load),
        Case("continuous, whole prompts", limits(WHOLE, 64), FCFS, load),
        Case("continuous, chunks of 512", limits(512, 64), FCFS, load),
        Case("continuous, target of 25 ms", limits(WHOLE, 64, inter_token_us=25_000), FCFS, load),
    ]


def textbook(_: int) -> list[Case]:
    """Eight slots; one request of 500 steps among those of 50. The static batch is those eight alone."""
    first = (Demand(0, 16, 500), *[Demand(0, 16, 50)] * 7)
    more = (Demand(0, 16, 50),) * 63
    return [
        Case("static", limits(WHOLE, 8), STATIC, Workload(first)),
        Case("continuous", limits(WHOLE, 8), FCFS, Workload(first + more)),
    ]


def tenants(seed: int, num_quiet: int = 40) -> list[Case]:
    """A tenant of now and then one request, and another whose 256 clients ask again as soon as they are answered; it
    has some thirteen requests for one of the first and goes on as long."""
    modest = Kind(uniform(1_000, 2_000), uniform(50, 150), "quiet")
    greedy = Kind(log_normal(600, 0.8, 4_000), log_normal(120, 0.6, 600), "flood")
    quiet = poisson(modest, num_quiet, per_second=1.0, seed=seed)
    flood = closed_loop(greedy, 256 + 13 * num_quiet, num_clients=256, seed=~seed)
    fair = limits(256, 128, head_start=4_096)
    return [
        Case("quiet tenant alone", fair, FAIR, quiet),
        Case("fair", fair, FAIR, quiet + flood),
        Case("fair, no head start", replace(fair, head_start=0), FAIR, quiet + flood),
        Case("fcfs", fair, FCFS, quiet + flood),
    ]


def flood(_: int) -> list[Case]:
    """Thirty-two decoders, and after a second sixteen documents of 8,000 tokens within a second; steps vary by 10%."""
    decoders = tuple(Demand(0, 200 + 13 * number, 1_000, "decoders") for number in range(32))
    documents = tuple(Demand(NS_PER_S + number * NS_PER_S // 16, 8_000, 16, "documents") for number in range(16))
    device = replace(LLAMA_8B, jitter=0.1)
    load = Workload(decoders + documents)
    targets = (0, 30_000, 20_000, 15_000)
    return [
        Case(
            f"target of {target // 1000} ms" if target else "no target",
            limits(8_192, 64, inter_token_us=target, prefill_quantum=64),
            FCFS,
            load,
            device,
        )
        for target in targets
    ]


def storm_on(device: DeviceModel, mode: Mode, sizes: tuple[int, int] = (500, 2_000)) -> Case:
    """Ten requests at once, of so many prompt and output tokens, and KV blocks for three of them."""
    num_prompt, num_output = sizes
    small = replace(device, num_blocks=3 * -(-(num_prompt + num_output) // device.block_size))
    load = closed_loop(Kind(always(num_prompt), always(num_output)), count=10, num_clients=10, seed=0)
    return Case(f"{mode}; {device.name}", limits(512, 10, preemption=mode, prefix_cache=True), FCFS, load, small)


def storm(_: int) -> list[Case]:
    modes: tuple[Mode, ...] = ("recompute", "swap", "auto")
    return [storm_on(device, mode) for device in (QUICK_LINK, QUICK_COMPUTE) for mode in modes]


def memory(seed: int) -> list[Case]:
    """Outputs of very different lengths, always more of them than there are KV blocks for."""
    small = replace(LLAMA_8B, num_blocks=1_500)
    load = closed_loop(Kind(log_normal(400, 0.6, 2_000), log_normal(300, 0.8, 2_000)), 200, num_clients=64, seed=seed)
    blind = limits(512, 64, forecast=False)
    return [
        Case("forecast", replace(blind, forecast=True), FCFS, load, small),
        *(
            Case(f"no forecast, {rule}", replace(blind, victim=rule), FCFS, load, small)
            for rule in ("lifo", "lru", "cost")
        ),
    ]


SCENARIOS = (
    Scenario("batching", "Ways of batching: 14 requests a second, 64 slots", batching),
    Scenario("textbook", "The textbook batch: 8 slots, one request of 500 steps among those of 50", textbook),
    Scenario("tenants", "A quiet tenant beside one that floods: 128 slots", tenants),
    Scenario("flood", "32 decoders and a flood of long prompts", flood),
    Scenario("memory", "Looking ahead, and victim rules: more requests than KV blocks", memory),
    Scenario("storm", "Preemption: ten requests, memory for three", storm),
)
