"""Step times of the pretended device: from the settings, on an absolute timeline."""

from services.executor.batch import StepBatch
from services.executor.rows import PlanDecoder
from services.executor.timeline import Timeline
from services.runtime.settings import ExecutorSettings
from tests.unit.executor.rig import Row, append, init, plan, small_capacity

SETTINGS = ExecutorSettings(step_fixed_us=100.0, step_per_token_us=10.0, step_per_kv_token_us=1.0)


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0
        self.slept: list[int] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds * 1e9))
        self.now_ns += round(seconds * 1e9)


def batches() -> tuple[StepBatch, StepBatch, StepBatch]:
    """Six tokens over six positions; one more token over seven; nothing at all. All planned at time 0."""
    decoder = PlanDecoder(small_capacity())
    return (
        decoder.decode(plan(1, [init(1, 6), append(1, [1, 2])], [Row(1, 0, [1] * 6)]), 0),
        decoder.decode(plan(2), 0),
        decoder.decode(plan(3, dropped=[0]), 0),
    )


def test_a_step_costs_a_fixed_part_its_tokens_and_the_positions_it_reads() -> None:
    timeline = Timeline(SETTINGS)
    assert [timeline.duration_ns(batch) for batch in batches()] == [166_000, 117_000, 0]


def test_steps_lie_end_to_end_and_lost_time_is_made_up() -> None:
    clock = Clock()
    timeline = Timeline(SETTINGS, lambda: clock.now_ns, clock.sleep)
    first, second, _ = batches()
    assert timeline.pass_step(first) == (0, 166_000)
    clock.now_ns += 50_000  # woken late
    assert timeline.pass_step(second) == (166_000, 283_000), "the device's own times, not the host's"
    assert clock.slept == [166_000, 67_000]
    assert clock.now_ns == 166_000 + 117_000


def test_a_device_that_waited_for_its_plan_starts_when_it_arrives() -> None:
    clock = Clock()
    clock.now_ns = 900_000
    timeline = Timeline(SETTINGS, lambda: clock.now_ns, clock.sleep)
    decoder = PlanDecoder(small_capacity())
    late = decoder.decode(plan(1, [init(1, 1), append(1, [1])], [Row(1, 0, [1])]), 900_000)
    timeline.pass_step(late)
    assert clock.slept == [111_000]


def test_without_step_times_nobody_sleeps() -> None:
    clock = Clock()
    timeline = Timeline(ExecutorSettings(), lambda: clock.now_ns, clock.sleep)
    timeline.pass_step(batches()[0])
    assert clock.slept == []
