"""What a step costs the scheduler: absorb a result, plan the next step, encode the plan and the token batch.

Decode at several widths, prefix cache on: every row is carried, one in sixteen needs a block; or, with churn, four
requests end and four join in each step as well. Medians in microseconds; undisturbed_us, the 5th percentile, is what a
step costs where the machine has no other guest.
"""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

from services.scheduler.core.policy import FAIR, FCFS, STATIC, Policy, priority
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.state import Limits
from services.wire import columns
from services.wire.codec import decoder, encode
from services.wire.messages import (
    Identity,
    ModelCard,
    Output,
    Ready,
    ResultMessage,
    Sampling,
    StepPlan,
    StepResult,
    StepStatus,
    Stopping,
    Submit,
)

NUM_STEPS = 1000
NUM_WARM_UP = 150
NUM_CHURNED = 4  # requests that end, and that join, in each step with churn
EOS = columns.pack([2])


@dataclass
class Load:
    """Rows at a time, their prompts' length, whether requests come and go, and the order of service."""

    num_rows: int
    prompt_tokens: int = 20
    has_churn: bool = False
    policy: Policy = FCFS


class Bench:
    """One scheduler at depth 2, and the executor's part played by hand."""

    def __init__(self, load: Load) -> None:
        self.load = load
        budget = 2 * load.num_rows * (load.prompt_tokens + 16)
        self.scheduler = Scheduler(Limits(2, budget, budget, load.num_rows, 4096, 1 << 30), load.policy)
        card = ModelCard("bench", 49152, 1 << 20, (2,))
        num_blocks = load.num_rows * (load.prompt_tokens // 16 + 300)
        for epoch in (0, 1):
            self.scheduler.executor_ready(Ready(epoch, 1, num_blocks, 16, load.num_rows, 1, card), 0)
        self.num_submitted = 0
        self.rows: list[int] = []
        self.plans: list[tuple[StepPlan, int]] = []

    def submit(self, max_tokens: int) -> None:
        """Prompts of many lengths, so that rows need blocks at different steps, as in life."""
        number = self.num_submitted
        self.num_submitted += 1
        prompt = columns.pack([number % 40_000 + 3] * (self.load.prompt_tokens + number % 16))
        identity = Identity("gateway-0", f"cmpl-{number:08d}", number)
        submit = Submit(identity, prompt, Sampling(), Stopping(max_tokens, 0, EOS), Output(), tenant=f"t{number % 4}")
        self.scheduler.submit(submit, number)

    def plan(self, now: int) -> StepPlan:
        plan = self.scheduler.plan(now)
        assert plan is not None
        return plan

    def note(self, plan: StepPlan) -> None:
        """Keep a plan until its result is due, with the number of its rows."""
        dropped = set(columns.unpack(plan.dropped))
        self.rows = [row for index, row in enumerate(self.rows) if index not in dropped]
        self.rows += columns.unpack(plan.slots)
        self.plans.append((plan, len(self.rows)))

    def result(self) -> bytes:
        """The encoded result of the oldest plan: one token a row."""
        plan, num_rows = self.plans.pop(0)
        ones = columns.pack([1] * num_rows)
        return encode(StepResult(plan.epoch, plan.step, StepStatus.OK, columns.pack([7] * num_rows), ones))


def measure(load: Load) -> Mapping[str, float]:
    """Medians over the steps after the warm-up."""
    bench = Bench(load)
    scheduler = bench.scheduler
    lifetime = load.num_rows // NUM_CHURNED
    for number in range(load.num_rows):
        bench.submit(lifetime + number // NUM_CHURNED if load.has_churn else 4000)
    scheduler.tidy()
    for _ in range(2):
        bench.note(bench.plan(0))
    scheduler.take_batch()
    decode = decoder(ResultMessage)
    stretches: list[tuple[float, ...]] = []
    for step in range(NUM_STEPS):
        if load.has_churn:
            for _ in range(NUM_CHURNED):
                bench.submit(lifetime)
            scheduler.tidy()
        result = decode.decode(bench.result())
        start = time.perf_counter()
        scheduler.absorb(result, step)
        absorbed = time.perf_counter()
        plan = bench.plan(step)
        planned = time.perf_counter()
        encode(plan)
        encoded = time.perf_counter()
        batch = scheduler.take_batch()
        assert batch is not None
        encode(batch)
        told = time.perf_counter()
        scheduler.tidy()
        tidied = time.perf_counter()
        bench.note(plan)
        if step >= NUM_WARM_UP:
            stretches.append((absorbed - start, planned - absorbed, encoded - planned, told - encoded, tidied - told))
    medians = [statistics.median(column) * 1e6 for column in zip(*stretches, strict=True)]
    totals = sorted(sum(stretch[:4]) * 1e6 for stretch in stretches)
    total = statistics.median(totals)
    names = ("absorb_us", "plan_us", "encode_plan_us", "encode_batch_us", "tidy_afterwards_us")
    figures = dict(zip(names, medians, strict=True))
    undisturbed = totals[len(totals) // 20]
    return figures | {"total_us": total, "undisturbed_us": undisturbed, "us_per_row": total / load.num_rows}


def run() -> dict[str, object]:
    """By rows, with churn, by length of context, and by policy."""
    loads = {f"rows_{num_rows}": Load(num_rows) for num_rows in (1, 32, 256, 512)}
    loads["rows_256_churn"] = Load(256, has_churn=True)
    loads["rows_256_context_2000"] = Load(256, prompt_tokens=2000)
    for policy in (priority(), FAIR, STATIC):
        loads[f"rows_256_{policy.name}"] = Load(256, policy=policy)
    loads["rows_256_churn_fair"] = Load(256, has_churn=True, policy=FAIR)
    return {name: measure(load) for name, load in loads.items()}
