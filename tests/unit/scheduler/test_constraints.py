"""Constraints at the scheduler: asked for at once, waited for by their own requests alone, failed with a word."""

from typing import Any

import pytest
from msgspec.structs import replace

from services.wire import columns
from services.wire.messages import (
    Constraint,
    ConstraintKind,
    ConstraintMessage,
    FailedRow,
    FailureReason,
    FinishReason,
    Prepare,
    Prepared,
    Release,
    RowFlag,
    SlotInit,
    StepPlan,
    Submit,
)
from tests.unit.scheduler.rig import Rig, limits, submit_message

EOS = 1  # the executor model's; it never draws it


def regex(source: str) -> Constraint:
    return Constraint(ConstraintKind.REGEX, source)


def constrained(name: str, source: str = "a+", prompt: list[int] | None = None, **asks: Any) -> Submit:
    asks = {"max_tokens": 4, **asks}
    return submit_message(name, prompt or [5, 6, 7], constraint=regex(source), **asks)


def messages(rig: Rig) -> list[ConstraintMessage]:
    return rig.scheduler.take_constraints()


def asked(rig: Rig) -> dict[str, int]:
    """The number of each constraint that the executor is now asked to prepare."""
    return {m.constraint.source: m.number for m in messages(rig) if isinstance(m, Prepare)}


def inits(plan: StepPlan | None) -> list[SlotInit]:
    assert plan is not None
    return [op for op in plan.ops if isinstance(op, SlotInit)]


def test_a_constraint_is_asked_for_at_once_and_its_request_waits_for_the_answer() -> None:
    rig = Rig()
    rig.submit(constrained("a"))
    assert messages(rig) == [Prepare(1, regex("a+"))] and messages(rig) == []
    assert rig.plan() is None
    rig.prepared(Prepared(1))
    plan = rig.plan()
    (init,) = inits(plan)
    assert (init.constraint, init.sampling.constraint) == (1, None)
    assert columns.unpack(init.known_tokens).tolist() == [5, 6, 7]
    rig.run()
    assert rig.close_of("a").reason == FinishReason.LENGTH
    assert messages(rig) == [Release(1)]


def test_the_others_do_not_wait() -> None:
    rig = Rig()
    rig.submit(constrained("a"))
    rig.submit(submit_message("b", [1, 2, 3], max_tokens=3))
    rig.turns(3)
    assert rig.close_of("b").reason == FinishReason.LENGTH and not rig.output("a")
    rig.prepared(Prepared(asked(rig)["a+"]))
    rig.run()
    assert len(rig.output("a")) == 4


def test_rows_of_a_constrained_sequence_are_masked_and_others_are_not() -> None:
    rig = Rig()
    rig.submit(constrained("a"))
    rig.submit(submit_message("b", [1, 2, 3]))
    rig.prepared(Prepared(asked(rig)["a+"]))
    plan = rig.plan()
    assert plan is not None
    assert [bool(flags & RowFlag.MASKED) for flags in columns.unpack(plan.flags)] == [True, False]


def test_equal_constraints_are_one_until_the_last_of_them_ends() -> None:
    rig = Rig()
    rig.submit(constrained("a", n=3))
    rig.submit(constrained("b", max_tokens=9))
    assert asked(rig) == {"a+": 1}
    rig.prepared(Prepared(1))
    rig.until(lambda: not any(key.request == "a" for key in set(rig.outputs) - set(rig.closes)))
    rig.submit(constrained("c"))
    assert messages(rig) == []
    rig.run()
    assert messages(rig) == [Release(1)]
    rig.submit(constrained("d"))
    assert messages(rig) == [Prepare(2, regex("a+"))]


def test_what_does_not_compile_ends_every_request_that_asks_for_it_and_nobody_else() -> None:
    rig = Rig()
    rig.submit(constrained("a", n=2))
    rig.submit(constrained("b"))
    rig.submit(constrained("c", "other"))
    numbers = asked(rig)
    rig.prepared(Prepared(numbers["a+"], "no such thing"))
    for key in ("a", 0), ("a", 1), ("b", 0):
        close = rig.close_of(*key)
        assert (close.reason, close.failure) == (FinishReason.FAILED, FailureReason.CONSTRAINT_INVALID)
        assert close.detail == "no such thing"
    rig.prepared(Prepared(numbers["other"]))
    rig.run()
    assert rig.close_of("c").reason == FinishReason.LENGTH
    assert messages(rig) == [Release(numbers["other"])], "what was never held is not released"


def test_only_so_many_are_asked_for_at_once_in_the_order_of_arrival() -> None:
    rig = Rig(limits(max_preparing=2))
    for name in "abcd":
        rig.submit(constrained(name, name))
    assert asked(rig) == {"a": 1, "b": 2}
    rig.cancel(constrained("c").identity)
    rig.prepared(Prepared(2, "bad"))
    assert asked(rig) == {"d": 3}, "one that nobody wants any more is not asked for"
    rig.prepared(Prepared(1))
    rig.prepared(Prepared(3))
    rig.run()


def test_an_answer_that_nobody_waits_for_is_released() -> None:
    rig = Rig()
    rig.submit(constrained("a"))
    assert asked(rig) == {"a+": 1}
    rig.cancel(constrained("a").identity)
    assert messages(rig) == [], "what is being compiled cannot be released yet"
    rig.prepared(Prepared(1))
    assert messages(rig) == [Release(1)]
    rig.prepared(Prepared(99))  # to no question at all
    assert messages(rig) == []


def test_a_preempted_sequence_brings_its_outputs_and_its_constraint() -> None:
    rig = Rig(limits(max_num_seqs=4, token_budget=16, chunk_size=16), num_blocks=8)
    rig.submit(constrained("a", "x", prompt=list(range(2, 12)), max_tokens=12))
    rig.submit(constrained("b", "y", prompt=list(range(12, 22)), max_tokens=12))
    for number in asked(rig).values():
        rig.prepared(Prepared(number))
    rig.run()
    assert rig.scheduler.state.counters.num_preemptions > 0
    renewed = [init for plan in rig.plans for init in inits(plan)][2:]
    assert renewed and all(init.constraint for init in renewed)
    assert any(len(columns.unpack(init.known_tokens)) > init.num_prompt_tokens for init in renewed)


def test_a_failed_step_of_a_living_executor_keeps_what_is_prepared() -> None:
    rig = Rig()
    rig.submit(constrained("a", max_tokens=6))
    rig.prepared(Prepared(asked(rig)["a+"]))
    rig.turns(3)
    rig.plan()
    rig.deliver(fails=True)
    assert messages(rig) == []
    plan = rig.plan()
    (init,) = inits(plan)
    assert init.constraint == 1 and len(columns.unpack(init.known_tokens)) > 3
    rig.run()
    assert len(rig.output("a")) == 6


def test_a_new_executor_is_asked_anew_and_late_answers_of_the_dead_are_nothing() -> None:
    rig = Rig()
    rig.submit(constrained("a", max_tokens=6))
    rig.submit(constrained("b", "other"))
    numbers = asked(rig)
    rig.prepared(Prepared(numbers["a+"]))
    rig.turns(3)
    rig.lose_executor()
    assert messages(rig) == [], "nobody is there to be asked"
    rig.open_executor()
    rig.prepared(Prepared(numbers["other"]))
    rig.prepared(Prepared(numbers["a+"], "an error of the dead"))
    assert rig.plan() is None
    # The one that was being compiled when the first one died is asked for alone.
    again = asked(rig)
    assert set(again) == {"other"} and again["other"] > max(numbers.values())
    rig.prepared(Prepared(again["other"]))
    last = asked(rig)
    assert set(last) == {"a+"}
    rig.prepared(Prepared(last["a+"]))
    rig.run()
    assert len(rig.output("a")) == 6 and len(rig.output("b")) == 4


def test_a_constraint_that_kills_executors_ends_its_own_requests() -> None:
    rig = Rig()
    rig.submit(constrained("poison", "poison"))
    rig.submit(constrained("good", "good"))
    rig.submit(submit_message("plain", [1, 2, 3], max_tokens=5))
    assert len(asked(rig)) == 2
    rig.kill_executor()
    assert asked(rig) == {"poison": 3}
    rig.turns(2)
    rig.kill_executor()
    close = rig.close_of("poison")
    assert (close.failure, close.detail) == (FailureReason.CONSTRAINT_INVALID, "executors died while they compiled it")
    rig.prepared(Prepared(asked(rig)["good"]))
    rig.run()
    assert len(rig.output("good")) == 4 and len(rig.output("plain")) == 5


def test_a_suspect_whose_constraint_is_not_ready_keeps_nobody_from_running() -> None:
    rig = Rig()
    rig.submit(constrained("a", max_tokens=6))
    rig.submit(submit_message("b", [9, 8], max_tokens=6))
    rig.prepared(Prepared(asked(rig)["a+"]))
    for _ in range(2):
        rig.plan()
        rig.kill_executor()
    numbers = asked(rig)
    rig.until(lambda: bool(rig.output("b")))
    assert not rig.output("a")
    rig.prepared(Prepared(numbers["a+"]))
    rig.run()
    assert len(rig.output("a")) == len(rig.output("b")) == 6


def test_a_dead_end_ends_its_sequence_and_its_prefix_may_be_found() -> None:
    rig = Rig()
    prompt = list(range(2, 14))
    rig.submit(constrained("a", prompt=prompt, max_tokens=9))
    rig.prepared(Prepared(asked(rig)["a+"]))
    rig.turns(2)
    rig.plan()
    failed = FailedRow(0, FailureReason.CONSTRAINT_FAILED, "no token may follow")
    rig.absorb(replace(rig.executor.step(), tokens=b"", n_out=columns.pack([0]), failed_rows=(failed,)))
    close = rig.close_of("a")
    assert (close.failure, close.detail) == (FailureReason.CONSTRAINT_FAILED, "no token may follow")
    rig.submit(submit_message("b", prompt, max_tokens=2))
    rig.run()
    assert rig.close_of("b").num_cached_tokens == 8


@pytest.mark.parametrize(("is_constrained", "num_tokens"), [(True, 2), (False, 6)])
def test_the_end_of_a_constrained_text_ends_it_whatever_was_asked(is_constrained: bool, num_tokens: int) -> None:
    """With ignore_eos, and before min_tokens: then it was drawn because nothing else could follow."""
    rig = Rig()
    submit = submit_message(
        "a", [5, 6, 7], max_tokens=6, min_tokens=4, constraint=regex("a") if is_constrained else None
    )
    rig.submit(submit)
    for number in asked(rig).values():
        rig.prepared(Prepared(number))
    rig.turns(1)
    rig.plan()
    rig.absorb(replace(rig.executor.step(), tokens=columns.pack([EOS])))
    while rig.turn():
        pass
    close = rig.close_of("a")
    assert len(rig.output("a")) == num_tokens
    assert close.reason == (FinishReason.STOP if is_constrained else FinishReason.LENGTH)
    assert close.matched_token == (EOS if is_constrained else None)
