"""What operators order: pauses, flushes, cancels and log levels, and the numbers they are told."""

import pytest

from services.runtime import logs
from services.runtime.settings import SchedulerSettings
from services.scheduler.core.step_sizes import NUM_SIZES, NUM_TIMES, StepSizes
from services.wire.messages import (
    Control,
    ControlReply,
    ControlVerb,
    FailureReason,
    Load,
    SetDetokenizerLog,
    SetExecutorLog,
)
from tests.unit.scheduler.desk import Desk
from tests.unit.scheduler.rig import submit_message

LONG_PROMPT = [*range(5, 45)]


def order(desk: Desk, verb: ControlVerb, argument: str = "") -> ControlReply:
    """Give an order, and the answer to it."""
    desk.status.receive()
    desk.submit.send(Control("g", 7, verb, argument))
    desk.service.turn()
    (reply,) = [message for message in desk.status.receive() if isinstance(message, ControlReply)]
    return reply


def load(desk: Desk) -> Load:
    desk.status.receive()
    desk.submit.send(Control("g", 8, ControlVerb.LOAD))
    desk.service.turn()
    (told,) = [message for message in desk.status.receive() if isinstance(message, Load)]
    return told


def test_while_paused_calls_wait_and_deadlines_are_kept() -> None:
    desk = Desk()
    desk.open()
    desk.submit.send(submit_message("runs", [5, 6], max_tokens=100))
    desk.run(3)
    assert order(desk, ControlVerb.PAUSE).is_done
    desk.run(3)  # what was planned before is taken in
    num_steps = desk.executor.num_steps
    desk.submit.send(submit_message("waits", [5, 6], max_tokens=2, remaining_ms=500))
    desk.run(3)
    assert desk.executor.num_steps == num_steps
    assert load(desk).is_paused and load(desk).num_waiting == 1
    desk.batches()
    desk.seconds += 0.6
    desk.run(1)
    assert [close.failure for batch in desk.batches() for close in batch.closes] == [FailureReason.DEADLINE]
    assert order(desk, ControlVerb.RESUME).is_done
    desk.run(3)
    assert desk.executor.num_steps > num_steps
    assert not load(desk).is_paused


def test_a_flushed_prefix_is_computed_again() -> None:
    desk = Desk()
    desk.open()
    for name in ("first", "hits"):
        desk.submit.send(submit_message(name, LONG_PROMPT, max_tokens=2))
        desk.run()
    told = load(desk)
    assert (told.num_looked_up_tokens, told.num_cached_tokens) == (80, 36)
    reply = order(desk, ControlVerb.FLUSH_CACHE)
    assert (reply.is_done, reply.num_affected) == (True, 10)
    desk.submit.send(submit_message("misses", LONG_PROMPT, max_tokens=2))
    desk.run()
    told = load(desk)
    assert (told.num_looked_up_tokens, told.num_cached_tokens) == (120, 36)


def test_a_cache_that_is_off_is_never_asked() -> None:
    desk = Desk(SchedulerSettings(prefix_cache=False))
    desk.open()
    desk.submit.send(submit_message("a", LONG_PROMPT, max_tokens=2))
    desk.run()
    assert (load(desk).num_looked_up_tokens, load(desk).num_prompt_tokens) == (0, 40)


def test_a_cancel_of_all_says_how_many_there_were() -> None:
    desk = Desk()
    desk.open()
    for name in ("a", "b", "c"):
        desk.submit.send(submit_message(name, [5, 6], max_tokens=50))
    desk.run(3)
    assert order(desk, ControlVerb.CANCEL_ALL).num_affected == 3
    assert order(desk, ControlVerb.CANCEL_ALL).num_affected == 0


@pytest.mark.parametrize(
    ("argument", "levels"),
    [
        ("debug", {"scheduler", "executor", "detokenizer"}),
        ("warning executor", {"executor"}),
        ("error detokenizer scheduler", {"scheduler", "detokenizer"}),
        ("info gateway", set()),
    ],
)
def test_a_log_level_reaches_the_services_it_is_for(
    argument: str, levels: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own: list[str] = []
    monkeypatch.setattr(logs, "set_level", own.append)
    desk = Desk()
    desk.open()
    order(desk, ControlVerb.LOG_LEVEL, argument)
    level = argument.split()[0]
    told = {"scheduler": own}
    told["executor"] = [m.level for m in desk.plan.receive() if isinstance(m, SetExecutorLog)]
    told["detokenizer"] = [m.level for m in desk.tokens.receive() if isinstance(m, SetDetokenizerLog)]
    assert told == {name: [level] if name in levels else [] for name in told}


def test_an_executor_that_takes_anothers_place_logs_as_that_one_did() -> None:
    desk = Desk()
    desk.open()
    order(desk, ControlVerb.LOG_LEVEL, "debug executor")
    desk.replace_executor()
    desk.result.send(desk.executor.ready(0))
    desk.service.turn()
    _hello, level = desk.plan.receive()
    assert level == SetExecutorLog("debug")


def test_steps_are_counted_by_size_and_time() -> None:
    sizes = StepSizes()
    for num_tokens, time_us in ((1, 0), (2, 100), (3, 101), (4, 200), (5, 201), (1 << 20, 1 << 40)):
        sizes.note(num_tokens, time_us)
    assert sizes.by_tokens == [1, 1, 2, 1] + [0] * (NUM_SIZES - 5) + [1]
    assert sizes.by_time == [2, 2, 1] + [0] * (NUM_TIMES - 4) + [1]
    assert (sizes.num_tokens, sizes.time_us) == (15 + (1 << 20), 602 + (1 << 40))


def test_every_step_is_in_the_load() -> None:
    desk = Desk()
    desk.open()
    desk.submit.send(submit_message("a", LONG_PROMPT, max_tokens=9))
    desk.run()
    told = load(desk)
    assert sum(told.step_tokens) == sum(told.step_times) == told.num_steps == 9
    assert told.num_step_tokens == 40 + 8
    assert told.step_tokens[0] == 8 and told.step_tokens[6] == 1
    assert told.time_ns == desk.time_ns() and told.num_epochs == 1
