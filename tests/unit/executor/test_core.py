"""Epochs, failures and results, with a backend that fails on order."""

import numpy as np
import pytest

from services.executor.backend import NO_ROWS, Outcome, Unsupported
from services.executor.batch import StepBatch
from services.executor.capacity import Capacity
from services.executor.core import ExecutorCore
from services.wire import columns
from services.wire.messages import (
    CopyBlocks,
    FailedRow,
    FailureReason,
    Hello,
    Op,
    Ready,
    ResultMessage,
    Sampling,
    SlotInit,
    SlotRetire,
    StepResult,
    StepStatus,
)
from tests.unit.executor.rig import GREEDY, Driver, Row, append, init, plan, small_capacity, tokens_of

REFUSED = Sampling(top_k=99)


class Ordered:
    """A backend whose token is the slot, 100 more with each step; it fails as it is told to."""

    def __init__(self) -> None:
        self.capacity: Capacity = small_capacity()
        self.error: Exception | None = None
        self.poison: list[int] = []  # rows of the next step
        self.stuck: list[int] = []
        self.failed_slots: list[int] = []
        self.steps: list[int] = []
        self.num_epochs = 0

    def begin_epoch(self) -> None:
        self.num_epochs += 1

    def init_slot(self, op: SlotInit) -> None:
        if op.sampling == REFUSED:
            raise Unsupported("top_k 99 is not done here")

    def fail_slot(self, slot: int) -> None:
        self.failed_slots.append(slot)

    def copy_blocks(self, op: CopyBlocks) -> None:
        raise NotImplementedError

    def run(self, batch: StepBatch) -> Outcome:
        self.steps.append(batch.step)
        if self.error is not None:
            raise self.error
        poisoned = np.array(self.poison, np.int64) if self.poison else NO_ROWS
        stuck = np.array(self.stuck, np.int64) if self.stuck else NO_ROWS
        self.poison, self.stuck = [], []
        return Outcome(batch.slots[batch.sampling_rows] + np.int32(100 * batch.step), poisoned, stuck=stuck)


TWO_SLOTS: list[Op] = [init(1, 2), init(2, 3), append(1, [1, 2, 3]), append(2, [4, 5])]
TWO_ROWS = [Row(1, 0, [5, 6]), Row(2, 0, [7, 8], samples=False)]


def only(messages: list[ResultMessage]) -> StepResult:
    [message] = messages
    assert isinstance(message, StepResult)
    return message


def test_an_executor_opens_with_epoch_0_and_echoes_every_hello_with_its_instance() -> None:
    backend = Ordered()
    core = ExecutorCore(backend, instance=77)
    opening = core.opening()
    [answer] = core.handle(Hello(5))
    assert isinstance(answer, Ready)
    assert (opening.epoch, answer.epoch) == (0, 5)
    assert opening.instance == answer.instance == 77
    assert (answer.num_blocks, answer.block_size, answer.max_rows, answer.num_host_blocks) == (64, 4, 8, 0)
    assert answer.card is backend.capacity.card
    assert backend.num_epochs == 1


def test_a_plan_of_another_epoch_or_before_any_hello_is_dropped() -> None:
    backend = Ordered()
    core = ExecutorCore(backend, instance=77)
    assert core.handle(plan(1, epoch=0)) == []
    core.handle(Hello(2))
    assert core.handle(plan(1, epoch=1)) == []
    assert core.handle(plan(1, epoch=3)) == []
    assert only(core.handle(plan(1, epoch=2))).status == StepStatus.OK
    assert backend.steps == [1]


def test_a_hello_that_was_meant_for_the_executor_before_changes_nothing() -> None:
    backend = Ordered()
    core = ExecutorCore(backend, instance=77)
    core.handle(Hello(3))
    assert core.handle(Hello(2)) == []
    assert backend.num_epochs == 1
    assert only(core.handle(plan(1, epoch=3))).status == StepStatus.OK


def test_results_follow_row_order_and_only_sampling_rows_put_out() -> None:
    driver = Driver(Ordered())
    first = driver.run(TWO_SLOTS, TWO_ROWS)
    assert (first.epoch, first.step, first.status) == (1, 1, StepStatus.OK)
    assert tokens_of(first) == [101]
    assert columns.unpack(first.n_out).tolist() == [1, 0]
    second = driver.carry([], [Row(2, 2, [9])], [1])
    assert tokens_of(second) == [201, 202]
    assert columns.unpack(second.n_out).tolist() == [1, 1]
    third = driver.run([], [Row(2, 3), Row(1, 3)])
    assert tokens_of(third) == [302, 301]


def test_times_rise_from_received_to_done() -> None:
    clock = iter(range(1000, 2000))
    core = ExecutorCore(Ordered(), instance=1, now_ns=lambda: next(clock))
    core.handle(Hello(1))
    result = only(core.handle(plan(1)))
    assert 1000 <= result.t_received < result.t_launched < result.t_done


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), ValueError("bad"), ZeroDivisionError("zero")])
def test_a_failed_step_ends_its_epoch_and_the_next_one_is_clean(error: Exception) -> None:
    backend = Ordered()
    driver = Driver(backend)
    driver.run(TWO_SLOTS, TWO_ROWS)
    backend.error = error
    failed = driver.carry([], [], [1])
    assert failed.status == StepStatus.FAILED
    assert str(error) in failed.detail and "step 2" in failed.detail
    assert failed.tokens == failed.n_out == b""
    backend.error = None
    later = driver.carry()
    assert (later.step, later.status, later.detail) == (3, StepStatus.FAILED, failed.detail)
    assert backend.steps == [1, 2]
    driver.next_epoch()
    again = driver.run([init(1, 2), append(1, [1])], [Row(1, 1, [6])])
    assert tokens_of(again) == [401]


def test_a_plan_that_breaks_the_protocol_fails_the_epoch_with_its_reason() -> None:
    backend = Ordered()
    driver = Driver(backend)
    driver.run(TWO_SLOTS, TWO_ROWS)
    broken = driver.run([], [Row(1, 9, [5])])
    assert broken.status == StepStatus.FAILED
    assert "slot 1 generation 1 position 9 count 1: not the continuation" in broken.detail
    # Right by itself, but nothing of this epoch is decoded any more.
    assert driver.run([], [Row(1, 2)]).detail == broken.detail
    assert backend.steps == [1]
    driver.next_epoch()
    assert driver.run().status == StepStatus.OK


def test_a_bug_of_the_service_is_not_swallowed() -> None:
    backend = Ordered()
    driver = Driver(backend)
    backend.error = TypeError("a bug")
    with pytest.raises(TypeError, match="a bug"):
        driver.run()


def test_a_poisoned_row_fails_alone_and_so_do_its_later_rows() -> None:
    backend = Ordered()
    driver = Driver(backend)
    driver.run(TWO_SLOTS, [Row(1, 0, [5, 6]), Row(2, 0, [7, 8, 9])])
    backend.poison = [0]
    poisoned = driver.carry()
    assert tokens_of(poisoned) == [202]
    assert columns.unpack(poisoned.n_out).tolist() == [0, 1]
    [failure] = poisoned.failed_rows
    assert (failure.row, failure.failure) == (0, FailureReason.POISONED_ROW)
    assert "not finite" in failure.detail
    assert backend.failed_slots == [1]
    later = driver.run([], [Row(2, 4), Row(1, 3)])
    assert tokens_of(later) == [302]
    assert later.failed_rows == (FailedRow(1, FailureReason.POISONED_ROW, failure.detail),)


def test_a_row_without_a_token_to_draw_fails_alone_as_a_dead_end() -> None:
    backend = Ordered()
    driver = Driver(backend)
    driver.run(TWO_SLOTS, [Row(1, 0, [5, 6]), Row(2, 0, [7, 8, 9])])
    backend.stuck = [1]
    result = driver.carry()
    assert tokens_of(result) == [201]
    assert result.failed_rows == (FailedRow(1, FailureReason.CONSTRAINT_FAILED, "step 2: no token may follow"),)
    assert backend.failed_slots == [2]


def test_another_generation_of_a_failed_slot_is_healthy() -> None:
    backend = Ordered()
    driver = Driver(backend)
    driver.run([init(1), append(1, [1])], [Row(1, 0, [5])])
    backend.poison = [0]
    assert driver.carry().failed_rows
    healthy = driver.run([SlotRetire(1, 1), init(1), append(1, [2])], [Row(1, 0, [5])])
    assert tokens_of(healthy) == [301] and not healthy.failed_rows
    backend.poison = [0]
    assert driver.carry().failed_rows
    driver.next_epoch()
    healthy = driver.run([init(1), append(1, [1])], [Row(1, 0, [5])])
    assert tokens_of(healthy) == [501] and not healthy.failed_rows


def test_a_refused_sampling_fails_every_row_of_its_slot_and_nothing_else() -> None:
    backend = Ordered()
    driver = Driver(backend)
    ops: list[Op] = [init(1, 4, REFUSED), init(2, 2, GREEDY), append(1, [1]), append(2, [2])]
    chunk = driver.run(ops, [Row(1, 0, [5, 6], samples=False), Row(2, 0, [5, 6])])
    assert tokens_of(chunk) == [102]
    assert chunk.failed_rows == (FailedRow(0, FailureReason.STEP_FAILED, "top_k 99 is not done here"),)
    last = driver.run([], [Row(1, 2, [7, 8])])
    assert tokens_of(last) == [] and [failed.row for failed in last.failed_rows] == [0]
    assert columns.unpack(last.n_out).tolist() == [0]


def test_work_may_be_prepared_far_ahead_of_its_execution() -> None:
    driver = Driver(Ordered())
    core = driver.core
    works = [
        core.prepare(plan(1, TWO_SLOTS, TWO_ROWS), 1),
        core.prepare(plan(2, [], [Row(2, 2, [9])], [1]), 2),
        core.prepare(Hello(2), 3),
        core.prepare(plan(3, [init(1), append(1, [7])], [Row(1, 0, [3])], epoch=2), 4),
    ]
    results = [core.execute(work) for work in works if work is not None]
    assert [type(result) for result in results] == [StepResult, StepResult, Ready, StepResult]
    steps = [result for result in results if isinstance(result, StepResult)]
    assert [tokens_of(step) for step in steps] == [[101], [201, 202], [301]]
