"""What a step costs the scheduler: absorb a result, plan the next step, encode the plan and the token batch.

Steady decode at several widths: every row is carried, one in sixteen needs a block. Medians in microseconds.
"""

import statistics
import time
from collections.abc import Mapping

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
NUM_WARM_UP = 100
PROMPT_TOKENS = 20
MAX_TOKENS = 4000


def _open(num_rows: int) -> Scheduler:
    scheduler = Scheduler(Limits(2, 8192, 8192, num_rows, 4096, 1 << 30))
    card = ModelCard("bench", 49152, 8192, (2,))
    for epoch in (0, 1):
        scheduler.executor_ready(Ready(epoch, 1, 300_000, 16, num_rows, 1, card), 0)
    eos = columns.pack([2])
    for number in range(num_rows):
        # Prompts of many lengths, so that rows need blocks at different steps, as in life.
        prompt = columns.pack([number + 3] * (PROMPT_TOKENS + number % 16))
        identity = Identity("gateway-0", f"cmpl-{number:08d}", number)
        scheduler.submit(Submit(identity, prompt, Sampling(), Stopping(MAX_TOKENS, 0, eos), Output()), 0)
    scheduler.take_batch()
    return scheduler


def _result(plan: StepPlan, num_rows: int) -> bytes:
    ones = columns.pack([1] * num_rows)
    return encode(StepResult(plan.epoch, plan.step, StepStatus.OK, columns.pack([7] * num_rows), ones))


def measure(num_rows: int) -> Mapping[str, float]:
    """Medians over NUM_STEPS steps of `num_rows` decode rows at depth 2."""
    scheduler = _open(num_rows)
    decode = decoder(ResultMessage)
    plans = [plan for plan in (scheduler.plan(0), scheduler.plan(0)) if plan is not None]
    stretches: list[tuple[float, ...]] = []
    for step in range(NUM_STEPS):
        result = decode.decode(_result(plans.pop(0), num_rows))
        start = time.perf_counter()
        scheduler.absorb(result, step)
        absorbed = time.perf_counter()
        plan = scheduler.plan(step)
        planned = time.perf_counter()
        assert plan is not None
        encode(plan)
        encoded = time.perf_counter()
        batch = scheduler.take_batch()
        assert batch is not None
        encode(batch)
        told = time.perf_counter()
        scheduler.tidy()
        tidied = time.perf_counter()
        plans.append(plan)
        if step >= NUM_WARM_UP:
            stretches.append((absorbed - start, planned - absorbed, encoded - planned, told - encoded, tidied - told))
    medians = [statistics.median(column) * 1e6 for column in zip(*stretches, strict=True)]
    total = statistics.median(sum(stretch[:4]) for stretch in stretches) * 1e6
    names = ("absorb_us", "plan_us", "encode_plan_us", "encode_batch_us", "tidy_afterwards_us")
    return dict(zip(names, medians, strict=True)) | {"total_us": total, "us_per_row": total / num_rows}


def run() -> dict[str, object]:
    """Figures by rows."""
    return {f"rows_{num_rows}": measure(num_rows) for num_rows in (1, 32, 256, 512)}
