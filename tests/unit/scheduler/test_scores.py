"""Log-probabilities of prompts: every token once, in order, before the first output token, whatever happens.

The rig holds every batch against that; here are the ways on which a chunk is computed twice, or begins in another stay.
"""

import pytest

from services.wire.messages import SequenceKey
from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import Rig, limits, submit_message


def key(name: str, index: int = 0) -> SequenceKey:
    return SequenceKey("g", name, 1, index)


def tokens(count: int, first: int = 10) -> list[int]:
    return [first + order % 30 for order in range(count)]


def check(rig: Rig, name: str, prompt: list[int], count: int) -> None:
    assert rig.outputs[key(name)] == continuation(prompt, 0, count)
    assert rig.scored.get(key(name), []) == prompt[1:]


@pytest.mark.parametrize("chunk_size", [1, 3, 4, 64])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 9])
def test_chunks_together_score_the_whole_prompt(chunk_size: int, depth: int, size: int) -> None:
    rig = Rig(limits(depth=depth, chunk_size=chunk_size))
    rig.submit(submit_message("a", tokens(size), max_tokens=3, prompt_logprobs=0))
    rig.submit(submit_message("b", tokens(7, 20), max_tokens=3))
    rig.run()
    check(rig, "a", tokens(size), 3)
    assert key("b") not in rig.scored


def test_samples_share_their_prompts_scores() -> None:
    rig = Rig(limits(chunk_size=4))
    rig.submit(submit_message("a", tokens(11), n=3, max_tokens=3, prompt_logprobs=2))
    rig.run()
    check(rig, "a", tokens(11), 3)
    assert list(rig.scored) == [key("a")]


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_prompt_preempted_halfway_is_scored_once(preemption: str) -> None:
    """The older request takes the blocks of a prompt in the middle of its chunks."""
    rig = Rig(
        limits(chunk_size=4, token_budget=5, preemption=preemption, forecast=False),
        num_blocks=12,
        num_host_blocks=32,
    )
    rig.submit(submit_message("old", tokens(4), max_tokens=30))
    for _ in range(3):
        rig.turn()
    rig.submit(submit_message("new", tokens(36, 20), max_tokens=4, prompt_logprobs=1))
    rig.run()
    assert rig.scheduler.state.counters.num_preemptions > 0
    check(rig, "new", tokens(36, 20), 4)


@pytest.mark.parametrize("num_turns", range(8))
def test_a_failed_step_scores_nothing_twice(num_turns: int) -> None:
    rig = Rig(limits(chunk_size=4, depth=3))
    rig.submit(submit_message("a", tokens(17), max_tokens=4, prompt_logprobs=0))
    for _ in range(num_turns):
        rig.turn()
    if rig.scheduler.state.inflight:
        rig.deliver(fails=True)
    rig.run()
    check(rig, "a", tokens(17), 4)


@pytest.mark.parametrize("num_turns", range(8))
def test_a_dead_executor_scores_nothing_twice(num_turns: int) -> None:
    rig = Rig(limits(chunk_size=4, depth=2))
    rig.submit(submit_message("a", tokens(17), max_tokens=4, prompt_logprobs=0))
    for _ in range(num_turns):
        rig.turn()
    rig.kill_executor()
    rig.run()
    check(rig, "a", tokens(17), 4)
