"""Settings at their corners, and short requests in quick succession: everything ends in few steps, nothing leaks."""

import random

import pytest

from services.scheduler.core.state import Limits
from services.wire.messages import FinishReason, Identity
from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import Rig, limits, submit_message


@pytest.mark.parametrize(
    ("bounds", "max_steps"),
    [
        (limits(depth=2, token_budget=64, chunk_size=64), 8),
        (limits(depth=2, token_budget=64, chunk_size=128), 8),
        (limits(depth=2, token_budget=1, chunk_size=1), 70),
        (limits(depth=2, token_budget=64, chunk_size=64, prefill_quantum=64), 8),
        (limits(depth=2, token_budget=64, chunk_size=64, max_num_seqs=1000), 8),
    ],
    ids=[
        "a prompt longer than the budget",
        "chunks larger than the budget",
        "one token a step",
        "all of the budget for prefill",
        "more sequences than the executor has rows",
    ],
)
def test_a_prompt_of_65_tokens_runs_within_a_bound_of_steps(bounds: Limits, max_steps: int) -> None:
    rig = Rig(bounds, num_blocks=64, block_size=4)
    prompt = [2 + number % 40 for number in range(65)]
    rig.submit(submit_message("a", prompt, max_tokens=4))
    rig.run(max_turns=max_steps)
    assert rig.output("a") == continuation(prompt, 0, 4)


def test_one_at_a_time_goes_in_order_and_past_a_cancelled_one() -> None:
    rig = Rig(limits(max_num_seqs=1))
    for number in range(5):
        rig.submit(submit_message(f"r{number}", [3], max_tokens=3))
    rig.turns(1)
    rig.cancel(Identity("g", "r1", 1))
    rig.run(max_turns=20)
    assert [key.request for key in rig.closes] == ["r1", "r0", "r2", "r3", "r4"]
    assert sorted(rig.scheduler.state.free_slots) == list(range(1, 17))


def test_more_sequences_than_blocks_run_by_taking_turns() -> None:
    rig = Rig(limits(max_num_seqs=32, token_budget=64), num_blocks=9, block_size=4, max_rows=32)
    for number in range(32):
        rig.submit(submit_message(f"r{number}", [3], max_tokens=9, seed=number))
    rig.run(max_turns=400)
    for number in range(32):
        assert rig.output(f"r{number}") == continuation([3], number, 9)
    assert sorted(rig.scheduler.state.free_slots) == list(range(1, 33))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_what_is_freed_is_given_on_at_once_and_nobody_reads_what_it_was(depth: int) -> None:
    """Three hundred short requests over two slots and few blocks; stop tokens leave rows in flight behind them."""
    rng = random.Random(depth)
    rig = Rig(limits(depth=depth, max_num_seqs=2, token_budget=8, chunk_size=8), num_blocks=9, block_size=2, max_rows=2)
    wanted: dict[str, list[int]] = {}
    for number in range(300):
        prompt = [rng.randint(2, 49) for _ in range(rng.randint(1, 6))]
        alone = continuation(prompt, number, rng.randint(1, 8))
        stop = rng.choice(alone)
        wanted[f"r{number}"] = alone[: alone.index(stop) + 1]
        rig.submit(submit_message(f"r{number}", prompt, max_tokens=8, stop_ids=(stop,), seed=number))
        rig.turn()
    rig.run()
    assert {key.request: tokens for key, tokens in rig.outputs.items()} == wanted
    assert all(close.reason == FinishReason.STOP for close in rig.closes.values())


@pytest.mark.parametrize("chunk", [1, 16, 17, 49, 50, 51])
@pytest.mark.parametrize("is_evicted", [False, True])
def test_no_token_comes_before_the_last_chunk_however_long_the_chunks(chunk: int, is_evicted: bool) -> None:
    """Cold, again with everything cached, and with a preemption between the chunks."""
    rig = Rig(limits(depth=2, token_budget=64, chunk_size=chunk), num_blocks=64, block_size=4)
    prompt = [2 + number % 40 for number in range(50)]
    for name, logprobs in (("cold", None), ("warm", None), ("scored", 1)):
        rig.submit(submit_message(name, prompt, max_tokens=3, prompt_logprobs=logprobs))
        if is_evicted and chunk < 50:
            rig.plan()
            for run in list(rig.scheduler.state.running):
                rig.scheduler.state.preempt(run)
        rig.run()
        assert rig.output(name) == continuation(prompt, 0, 3)
    assert rig.close_of("warm").num_cached_tokens == 48
    assert rig.close_of("scored").num_cached_tokens == 0
