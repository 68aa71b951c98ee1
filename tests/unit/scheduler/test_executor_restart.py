"""The scheduler's shell when executors die, hang and are replaced: requests wait, and nothing old reaches the new."""

import pytest

from services.runtime.settings import SchedulerSettings
from services.wire import columns
from services.wire.liveness import Heart
from services.wire.messages import Cancel, EngineDead, EngineReady, FailureReason, FinishReason, Hello, Identity
from tests.unit.scheduler.desk import Desk
from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import submit_message

PROMPTS = {"a": [5, 6, 7], "b": [8, 9], "c": [10, 11, 12, 13, 14, 15, 16]}
COUNT = 24
DEATH_S = 5.0


def running(settings: SchedulerSettings | None = None, turns: int = 4) -> Desk:
    """A desk whose requests have run for some steps, with plans in flight and unreceived."""
    desk = Desk(settings)
    desk.open()
    for name, prompt in PROMPTS.items():
        desk.submit.send(submit_message(name, prompt, max_tokens=COUNT))
    desk.run(turns)
    desk.service.turn()
    return desk


def heard(desk: Desk) -> tuple[dict[str, list[int]], dict[str, FinishReason]]:
    """What the text side has been told since it was last asked: tokens and ends, by request."""
    tokens: dict[str, list[int]] = {name: [] for name in PROMPTS}
    ends: dict[str, FinishReason] = {}
    for batch in desk.batches():
        if batch.deltas is not None:
            for key, token in zip(batch.deltas.sequences, columns.unpack(batch.deltas.tokens), strict=True):
                tokens[key.request].append(token)
        ends |= {close.sequence.request: close.reason for close in batch.closes}
    return tokens, ends


def assert_as_undisturbed(desk: Desk) -> None:
    tokens, ends = heard(desk)
    assert tokens == {name: continuation(prompt, 0, COUNT) for name, prompt in PROMPTS.items()}
    assert ends == dict.fromkeys(PROMPTS, FinishReason.LENGTH)


def wait(desk: Desk, seconds: float) -> None:
    """Time in which only the gateway and the detokenizer show that they live."""
    desk.seconds += seconds
    desk.submit.heartbeat()
    desk.feedback.heartbeat()
    desk.service.turn()


def lose_executor(desk: Desk) -> None:
    """So much silence that the executor is taken for dead; the server goes on."""
    wait(desk, DEATH_S + 0.1)
    assert desk.silent_peer(DEATH_S) == ""


def test_when_another_opens_requests_go_on_from_their_known_tokens() -> None:
    desk = running()
    desk.replace_executor()
    desk.open()
    desk.run()
    assert_as_undisturbed(desk)


def test_three_deaths_change_no_token() -> None:
    desk = running()
    for _ in range(3):
        desk.replace_executor()
        desk.open()
        desk.run(2)
    desk.run()
    assert desk.executor.instance == 4
    assert_as_undisturbed(desk)


def test_a_silent_executor_is_lost_and_waited_for() -> None:
    desk = running()
    desk.plan.receive()
    lose_executor(desk)
    assert desk.lost == [1]
    desk.service.turn()
    assert desk.plan.receive() == []
    assert not any(isinstance(message, EngineDead) for message in desk.status.receive())
    desk.replace_executor()
    desk.open()
    desk.run()
    assert desk.silent_peer(DEATH_S) == ""
    assert desk.lost == [1]
    assert_as_undisturbed(desk)


def test_plans_for_a_dead_executor_never_reach_the_next() -> None:
    desk = running()
    desk.replace_executor()
    desk.service.turn()
    assert desk.plan.receive() == []
    desk.result.send(desk.executor.ready(0))
    desk.service.turn()
    assert desk.plan.receive() == [Hello(2)]


def test_an_executor_that_takes_no_plan_is_lost_at_once() -> None:
    desk = running()
    before = desk.executor
    results = desk.result
    for plan in desk.plan.receive():
        before.receive(plan)  # type: ignore[arg-type]
    desk.replace_executor()
    results.send(before.step())  # its last words; the plan that they lead to finds nobody
    desk.service.turn()
    assert desk.lost == [1]
    results.send(before.step())  # even later ones are of no interest
    desk.service.turn()
    desk.open()
    desk.run()
    assert_as_undisturbed(desk)


def test_a_lost_executor_that_speaks_again_is_not_listened_to_and_hears_nothing() -> None:
    desk = running()
    before, results, plans = desk.executor, desk.result, desk.plan
    for plan in plans.receive():
        before.receive(plan)  # type: ignore[arg-type]
    lose_executor(desk)
    results.heartbeat()
    results.send(before.step())
    desk.service.turn()
    heard_before = dict(plans.last_heard())
    Heart(desk.links.outlets(), 1.0).beat(desk.seconds)
    assert desk.lost == [1] and plans.receive() == []
    assert dict(plans.last_heard()) == heard_before
    desk.replace_executor()
    desk.open()
    results.send(before.step())
    desk.run()
    assert_as_undisturbed(desk)


def test_the_silence_of_the_dead_does_not_count_against_the_living() -> None:
    desk = running()
    desk.replace_executor()
    desk.open()
    desk.result.heartbeat()
    wait(desk, DEATH_S - 0.1)
    desk.result.heartbeat()
    wait(desk, 0.2)  # now the former is silent, the present is not
    assert desk.silent_peer(DEATH_S) == ""
    assert desk.lost == []
    desk.run()
    assert_as_undisturbed(desk)
    lose_executor(desk)
    assert desk.lost == [2]


def test_without_another_in_time_the_server_cannot_go_on() -> None:
    desk = running(SchedulerSettings(executor_absence_s=30.0))
    lose_executor(desk)
    wait(desk, 29.9)
    assert desk.silent_peer(DEATH_S) == ""
    wait(desk, 0.2)
    assert desk.silent_peer(DEATH_S) == "executor"


def test_one_that_never_answers_its_hello_is_as_good_as_none() -> None:
    desk = running(SchedulerSettings(executor_absence_s=30.0))
    desk.replace_executor()
    desk.result.send(desk.executor.ready(0))
    desk.service.turn()
    assert desk.silent_peer(1000.0) == ""
    desk.result.heartbeat()
    wait(desk, 30.1)
    assert desk.silent_peer(1000.0) == "executor"


def test_the_wait_begins_anew_with_every_loss() -> None:
    desk = running(SchedulerSettings(executor_absence_s=30.0))
    for _ in range(3):
        lose_executor(desk)
        wait(desk, 20.0)
        desk.replace_executor()
        desk.open()
        assert desk.silent_peer(DEATH_S) == ""


def test_the_first_executor_may_take_as_long_as_it_likes() -> None:
    desk = Desk(SchedulerSettings(executor_absence_s=30.0))
    for _ in range(3):
        desk.service.turn()
        assert desk.silent_peer(DEATH_S) == ""
        desk.seconds += 1000.0


def test_gateways_are_told_of_every_instance_and_of_what_it_has() -> None:
    desk = running()
    desk.status.receive()
    desk.replace_executor(num_blocks=40)
    desk.open()
    (ready,) = [message for message in desk.status.receive() if isinstance(message, EngineReady)]
    assert ready.num_blocks == 39


def test_a_late_answer_of_a_dead_executor_opens_nothing() -> None:
    desk = Desk()
    before, results = desk.executor, desk.result
    results.send(before.ready(0))
    desk.service.turn()
    (first,) = desk.plan.receive()
    assert isinstance(first, Hello)
    desk.replace_executor()
    desk.result.send(desk.executor.ready(0))
    desk.service.turn()
    (second,) = desk.plan.receive()
    assert isinstance(second, Hello)
    results.send(before.hello(first))
    desk.service.turn()
    assert not desk.service.core.state.is_open
    desk.result.send(desk.executor.hello(second))
    desk.service.turn()
    assert desk.service.core.state.is_open
    results.send(before.hello(first))
    desk.service.turn()
    assert len([message for message in desk.status.receive() if isinstance(message, EngineReady)]) == 1


@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "unnoticed"])
def test_meanwhile_requests_come_are_cancelled_and_miss_their_deadlines(is_noticed: bool) -> None:
    desk = running()
    if is_noticed:
        lose_executor(desk)
    desk.submit.send(submit_message("new", [20, 21], max_tokens=3))
    desk.submit.send(submit_message("urgent", [22], max_tokens=3, remaining_ms=200))
    desk.submit.send(Cancel(Identity("g", "a", 1)))
    desk.service.turn()
    desk.seconds += 0.3
    desk.service.turn()
    closes = {close.sequence.request: close for batch in desk.batches() for close in batch.closes}
    assert {name: close.reason for name, close in closes.items()} == {
        "a": FinishReason.CANCELLED,
        "urgent": FinishReason.FAILED,
    }
    assert closes["urgent"].failure == FailureReason.DEADLINE
    desk.replace_executor()
    desk.open()
    desk.run()
    ends = {close.sequence.request: close for batch in desk.batches() for close in batch.closes}
    assert {name: close.reason for name, close in ends.items()} == dict.fromkeys(["b", "c", "new"], FinishReason.LENGTH)
    assert ends["new"].num_output_tokens == 3
