"""Cancels at awkward moments: before anything was planned, with the last step in flight, and with an id used again."""

import pytest

from services.wire import columns
from services.wire.messages import FinishReason, Identity, StepPlan
from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import Rig, limits, submit_message

PROMPT = [5, 6, 7, 8, 9]


def identity(name: str, incarnation: int = 1) -> Identity:
    return Identity("g", name, incarnation)


def test_what_was_never_planned_is_cancelled_without_a_block() -> None:
    """One waits long, the other until the very turn in which its place is free; whoever comes next is served."""
    rig = Rig(limits(max_num_seqs=1, prefix_cache=False))
    for name in ("a", "b", "c"):
        rig.submit(submit_message(name, PROMPT, max_tokens=6))
    rig.turns(2)
    num_free = rig.scheduler.state.pool.num_free
    rig.cancel(identity("b"))
    assert rig.scheduler.state.pool.num_free == num_free
    rig.until(lambda: len(rig.output("a")) == 6)
    rig.cancel(identity("c"))
    assert not len(rig.scheduler.state.waiting) and rig.scheduler.state.pool.num_free == 63
    rig.submit(submit_message("d", PROMPT, max_tokens=6))
    rig.run()
    for name in ("b", "c"):
        close = rig.close_of(name)
        assert (close.reason, close.num_output_tokens, rig.output(name)) == (FinishReason.CANCELLED, 0, [])
    assert rig.output("a") == rig.output("d") == continuation(PROMPT, 0, 6)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_cancel_with_the_last_token_in_flight_frees_once(depth: int) -> None:
    """Its slot and blocks go to others at once, to each its own; the token that comes late belongs to nobody."""
    rig = Rig(limits(depth=depth, max_num_seqs=3), num_blocks=8, block_size=4, max_rows=3)
    rig.submit(submit_message("a", PROMPT, max_tokens=3))
    (sequence,) = rig.scheduler.state.waiting
    rig.until(lambda: sequence.run is not None and sequence.run.is_ending)
    rig.cancel(identity("a"))
    for name in ("b", "c"):
        rig.submit(submit_message(name, PROMPT, max_tokens=6, salt=name))
    rig.deliver()
    rig.plan()
    one, other = rig.scheduler.state.running
    assert one.slot != other.slot and set(one.blocks).isdisjoint(other.blocks)
    rig.run()
    assert len(rig.output("a")) == 3 - depth and rig.close_of("a").reason == FinishReason.CANCELLED
    for name in ("b", "c"):
        assert rig.output(name) == continuation(PROMPT, 0, 6)


def numbers_of(plan: StepPlan) -> list[int]:
    return [
        number
        for column in (plan.slots, plan.generations, plan.positions, plan.counts, plan.host_tokens)
        for number in columns.unpack(column)
    ]


@pytest.mark.parametrize("num_delivered", range(6))
def test_a_cancel_with_the_last_chunk_in_flight_delivers_no_token(num_delivered: int) -> None:
    """Prompts of 40, 40 and 90 tokens in chunks of 32; the third is cancelled once its last chunk is planned."""
    rig = Rig(limits(depth=2, token_budget=32, chunk_size=32), num_blocks=128, block_size=4)
    prompts = {"a": [3] * 40, "b": [4] * 40, "c": [6] * 90}
    for name, prompt in prompts.items():
        rig.submit(submit_message(name, prompt, max_tokens=5))
    third = rig.scheduler.state.requests["c"].sequences[0]
    rig.until(lambda: third.run is not None and third.run.planned >= 90)
    rig.cancel(identity("c"))
    for _ in range(num_delivered):
        if rig.executor.plans:
            rig.deliver()
    rig.run()
    assert rig.output("c") == [] and rig.close_of("c").num_output_tokens == 0
    for name in ("a", "b"):
        assert rig.output(name) == continuation(prompts[name], 0, 5)
    assert all(number >= 0 for plan in rig.plans for number in numbers_of(plan))


def test_an_id_that_is_cancelled_and_used_again_is_served_every_time() -> None:
    """Two hundred times: the cancel of the first use comes after the second use has begun, and means the first."""
    rig = Rig(limits(max_num_seqs=2))
    for number in range(1, 401, 2):
        rig.submit(submit_message("x", PROMPT, max_tokens=2, incarnation=number))
        if number % 3 == 0:
            rig.plan()
        rig.submit(submit_message("x", PROMPT, max_tokens=2, incarnation=number + 1))
        rig.cancel(identity("x", number))
        rig.run()
        assert rig.close_of("x", incarnation=number).reason == FinishReason.CANCELLED
        assert rig.output("x", incarnation=number + 1) == continuation(PROMPT, 0, 2)
    assert not rig.scheduler.state.requests


def test_an_id_is_free_again_after_its_end() -> None:
    rig = Rig()
    for incarnation in range(1, 4):
        assert rig.submit(submit_message("x", PROMPT, max_tokens=3, incarnation=incarnation)) is None
        rig.run()
        rig.cancel(identity("x", incarnation))
        assert rig.output("x", incarnation=incarnation) == continuation(PROMPT, 0, 3)
