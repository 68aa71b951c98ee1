"""The scheduler's shell over memory links: order of the sends, status messages, control, peers that fall silent."""

from services.runtime.settings import SchedulerSettings
from services.scheduler.service import limits_from
from services.wire import columns
from services.wire.messages import (
    Cancel,
    Constraint,
    ConstraintKind,
    Control,
    ControlReply,
    ControlVerb,
    Credit,
    Draining,
    EngineDead,
    EngineReady,
    FailureReason,
    FinishReason,
    Hello,
    Identity,
    Load,
    Prepare,
    Prepared,
    Refused,
    Release,
    SequenceKey,
    StepPlan,
    StopHit,
)
from tests.unit.scheduler.desk import BOUND, Desk
from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import submit_message

PROMPT = [5, 6, 7]


def test_gateways_hear_of_the_engine_once_the_epoch_is_open() -> None:
    desk = Desk()
    desk.service.turn()
    assert not any(isinstance(message, EngineReady) for message in desk.status.receive())
    desk.open()
    *_, load, ready = desk.status.receive()
    assert isinstance(load, Load) and load.num_blocks == 63, "an engine that is ready is never seen without its blocks"
    assert isinstance(ready, EngineReady)
    assert (ready.num_blocks, ready.block_size, ready.max_num_seqs, ready.card.context_length) == (63, 4, 16, 512)
    assert any(isinstance(message, EngineReady) for message in desk.other.receive())


def test_a_request_runs_from_submit_to_close() -> None:
    desk = Desk()
    desk.open()
    desk.submit.send(submit_message("a", PROMPT, max_tokens=4))
    desk.run()
    batches = desk.batches()
    assert [batch.number for batch in batches] == list(range(1, len(batches) + 1))
    tokens = [token for batch in batches if batch.deltas for token in columns.unpack(batch.deltas.tokens)]
    assert tokens == continuation(PROMPT, 0, 4)
    assert batches[0].opens[0].sequence == batches[-1].closes[0].sequence == SequenceKey("g", "a", 1, 0)


def test_the_window_holds_depth_plans_and_no_more() -> None:
    for depth in (1, 2, 3):
        desk = Desk(SchedulerSettings(depth=depth))
        desk.open()
        desk.submit.send(submit_message("a", PROMPT, max_tokens=30))
        desk.service.turn()
        assert len(desk.plan.receive()) == depth
        desk.service.turn()
        assert desk.plan.receive() == []


def test_cancel_stop_hit_and_credit_reach_the_core() -> None:
    desk = Desk(SchedulerSettings(max_unread=3))
    desk.open()
    for name in ("cancelled", "stopped", "goes on"):
        desk.submit.send(submit_message(name, PROMPT, max_tokens=40))
    desk.run(6)
    desk.submit.send(Cancel(Identity("g", "cancelled", 1)))
    desk.feedback.send(StopHit(SequenceKey("g", "stopped", 1, 0), 0))
    desk.run(20)
    closes = [close for batch in desk.batches() for close in batch.closes]
    assert {(close.sequence.request, close.reason) for close in closes} == {
        ("cancelled", FinishReason.CANCELLED),
        ("stopped", FinishReason.STOP),
    }
    for number in range(1, 200):
        desk.feedback.send(Credit("g", number))
        desk.run(1)
    closes = [close for batch in desk.batches() for close in batch.closes]
    assert [close.reason for close in closes] == [FinishReason.LENGTH]


def test_a_duplicate_is_refused_to_its_own_gateway() -> None:
    desk = Desk()
    desk.open()
    desk.submit.send(submit_message("x", PROMPT))
    desk.submit.send(submit_message("x", PROMPT, gateway="h", incarnation=2))
    desk.service.turn()
    assert not any(isinstance(message, Refused) for message in desk.status.receive())
    (refused,) = [message for message in desk.other.receive() if isinstance(message, Refused)]
    assert refused.failure == FailureReason.DUPLICATE


def test_deadlines_need_no_message_to_be_kept() -> None:
    desk = Desk()
    desk.open()
    desk.submit.send(submit_message("a", PROMPT, max_tokens=200, remaining_ms=300))
    desk.service.turn()
    assert desk.service.next_event_ns() == int(100.3 * 1e9)
    desk.seconds += 0.31
    desk.service.turn()
    closes = [close for batch in desk.batches() for close in batch.closes]
    assert [close.failure for close in closes] == [FailureReason.DEADLINE]


def test_load_is_told_every_second_and_on_demand() -> None:
    desk = Desk()
    desk.open()
    desk.status.receive()
    desk.seconds += 1.01
    desk.service.turn()
    desk.service.turn()
    assert len([message for message in desk.status.receive() if isinstance(message, Load)]) == 1
    desk.submit.send(Control("g", 7, ControlVerb.LOAD))
    desk.service.turn()
    load, reply = desk.status.receive()
    assert isinstance(load, Load) and reply == ControlReply(7, True)


def test_control_pauses_resumes_drains_and_cancels_all() -> None:
    desk = Desk()
    desk.open()
    desk.submit.send(Control("g", 1, ControlVerb.PAUSE))
    desk.submit.send(submit_message("a", PROMPT, max_tokens=40))
    desk.run(2)
    assert desk.executor.num_steps == 0
    desk.submit.send(Control("g", 2, ControlVerb.RESUME))
    desk.run(2)
    assert desk.executor.num_steps
    desk.submit.send(Control("g", 3, ControlVerb.DRAIN))
    desk.submit.send(submit_message("b", PROMPT))
    desk.submit.send(Control("g", 4, ControlVerb.FLUSH_CACHE))
    desk.submit.send(Control("g", 5, ControlVerb.CANCEL_ALL))
    desk.service.turn()
    messages = desk.status.receive()
    assert any(isinstance(message, Draining) for message in messages)
    numbers = [message.number for message in messages if isinstance(message, ControlReply)]
    assert numbers == [1, 2, 3, 4, 5]
    closes = [close for batch in desk.batches() for close in batch.closes]
    assert {(close.sequence.request, close.reason) for close in closes} == {
        ("a", FinishReason.CANCELLED),
        ("b", FinishReason.FAILED),
    }


def test_a_failed_step_is_met_with_a_new_epoch() -> None:
    desk = Desk()
    desk.open()
    desk.submit.send(submit_message("a", PROMPT, max_tokens=5))
    desk.service.turn()
    for plan in desk.plan.receive():
        assert isinstance(plan, StepPlan)
        desk.executor.receive(plan)
    desk.result.send(desk.executor.step(fails=True))
    desk.service.turn()
    (hello,) = desk.plan.receive()
    assert hello == Hello(2)
    desk.result.send(desk.executor.hello(hello))
    desk.run()
    tokens = [token for batch in desk.batches() if batch.deltas for token in columns.unpack(batch.deltas.tokens)]
    assert tokens == continuation(PROMPT, 0, 5)


def test_a_silent_peer_is_named_and_the_gateways_are_told() -> None:
    desk = Desk()
    desk.feedback.heartbeat()
    desk.service.turn()
    assert desk.service.silent_peer(desk.seconds + 4.9, 5.0) == ""
    assert desk.service.silent_peer(desk.seconds + 5.1, 5.0) == "detokenizer"
    desk.service.tell_dead("the detokenizer is gone")
    assert EngineDead("the detokenizer is gone") in desk.status.receive()
    assert EngineDead("the detokenizer is gone") in desk.other.receive()


def test_a_gateway_that_does_not_read_misses_loads_and_nothing_else() -> None:
    desk = Desk()
    desk.open()
    for _ in range(BOUND + 10):
        desk.seconds += 1.01
        desk.service.turn()
    assert len(desk.status.receive()) == BOUND


def test_constraints_are_prepared_and_released_over_the_links() -> None:
    desk = Desk(SchedulerSettings(max_preparing=1))
    desk.open()
    asked = [Constraint(ConstraintKind.REGEX, source) for source in "ab"]
    for constraint in asked:
        desk.submit.send(submit_message(constraint.source, PROMPT, max_tokens=2, constraint=constraint))
    desk.service.turn()
    assert desk.plan.receive() == [Prepare(1, asked[0])]
    desk.result.send(Prepared(1))
    desk.service.turn()
    prepare, *plans = desk.plan.receive()
    assert prepare == Prepare(2, asked[1]) and plans and all(isinstance(plan, StepPlan) for plan in plans)
    desk.result.send(Prepared(2, "too big"))
    desk.service.turn()
    closes = [close for batch in desk.batches() for close in batch.closes]
    assert [(close.failure, close.detail) for close in closes] == [(FailureReason.CONSTRAINT_INVALID, "too big")]
    desk.submit.send(Cancel(Identity("g", "a", 1)))
    desk.service.turn()
    assert Release(1) in desk.plan.receive()


def test_chunk_size_defaults_to_the_budget() -> None:
    assert limits_from(SchedulerSettings(token_budget=100)).chunk_size == 100
    assert limits_from(SchedulerSettings(token_budget=100, chunk_size=7)).chunk_size == 7
