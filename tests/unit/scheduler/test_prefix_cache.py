"""The prefix cache: what is found, when, by whom, and what becomes of it."""

import random
from hashlib import blake2b

import pytest

from services.scheduler.core import prefix
from services.wire.messages import Identity, StepPlan, Submit
from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import Rig, Shape, limits, submit_message


def tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randint(2, 49) for _ in range(count)]


def ask(rig: Rig, name: str, prompt: list[int], max_tokens: int = 2, prompt_logprobs: int | None = None) -> int:
    """Run one request alone, hold its output against what it must be, and return its cached tokens."""
    rig.submit(submit_message(name, prompt, max_tokens=max_tokens, prompt_logprobs=prompt_logprobs))
    rig.run()
    close = rig.close_of(name)
    assert rig.output(name) == continuation(prompt, 0, close.num_output_tokens)
    return close.num_cached_tokens


def num_computed(rig: Rig) -> int:
    return sum(count for rows in rig.row_history for _, count in rows)


# what is found


@pytest.mark.parametrize(("length", "num_cached"), [(15, 0), (16, 0), (17, 16), (32, 16), (33, 32)])
def test_a_warm_prompt_is_found_up_to_its_last_token_in_whole_blocks(length: int, num_cached: int) -> None:
    rig = Rig(block_size=16)
    prompt = tokens(length)
    assert ask(rig, "cold", prompt) == 0
    before = num_computed(rig)
    assert ask(rig, "warm", prompt) == num_cached
    assert num_computed(rig) - before == length - num_cached + 1, "what was found is not computed, the rest is"


def test_one_token_more_than_a_cached_block_finds_the_block() -> None:
    rig = Rig(block_size=16)
    ask(rig, "sixteen", tokens(16))
    assert ask(rig, "one more", [*tokens(16), 7]) == 16


def test_a_block_is_found_after_its_own_prefix_only() -> None:
    rig = Rig(block_size=4)
    ask(rig, "first", [2, 2, 2, 2, 3, 3, 3, 3, 4])
    assert ask(rig, "same second block", [5, 5, 5, 5, 3, 3, 3, 3, 4]) == 0
    assert ask(rig, "same first block", [2, 2, 2, 2, 9, 9, 9, 9, 4]) == 4


def test_generated_tokens_are_found_by_the_next_turn_of_a_conversation() -> None:
    rig = Rig(block_size=4)
    prompt = tokens(6)
    ask(rig, "first", prompt, max_tokens=11)
    # Of its 17 tokens the last was never computed; 16 positions are four blocks.
    assert ask(rig, "second", [*prompt, *rig.output("first"), 7, 8]) == 16


def test_salts_share_nothing() -> None:
    rig = Rig(block_size=4)
    for name, salt in (("a", ""), ("b", "tenant"), ("c", "tenant"), ("d", "")):
        rig.submit(submit_message(name, tokens(9), max_tokens=2, salt=salt))
        rig.run()
    assert [rig.close_of(name).num_cached_tokens for name in "abcd"] == [0, 0, 8, 8]


def test_prompt_logprobs_take_no_hit_and_leave_blocks_for_others() -> None:
    rig = Rig(block_size=4)
    assert ask(rig, "cold", tokens(9), prompt_logprobs=0) == 0
    before = num_computed(rig)
    assert ask(rig, "again", tokens(9), prompt_logprobs=0) == 0
    assert num_computed(rig) - before == 9 + 1
    assert ask(rig, "plain", tokens(9)) == 8


def test_without_a_prefix_cache_nothing_is_found_or_kept() -> None:
    rig = Rig(limits(prefix_cache=False), block_size=4)
    assert ask(rig, "first", tokens(9)) == ask(rig, "second", tokens(9)) == 0
    assert not rig.scheduler.state.cache.contents()


def test_what_was_found_is_counted_once_however_often_the_sequence_comes_back() -> None:
    rig = Rig(limits(depth=1), num_blocks=9, block_size=4)
    ask(rig, "warm", tokens(9))
    for name in ("a", "b", "c"):
        rig.submit(submit_message(name, tokens(9), max_tokens=18))
    rig.run()
    assert rig.scheduler.state.counters.num_preemptions > 0
    assert {rig.close_of(name).num_cached_tokens for name in "abc"} == {8}
    assert rig.scheduler.state.counters.num_cached_tokens == 24


# twins: the same prefix asked for while it is being computed


def twins(count: int = 8, length: int = 128) -> list[Submit]:
    stem = tokens(length)
    return [submit_message(f"r{number}", [*stem, *tokens(5, number + 1)], max_tokens=3) for number in range(count)]


def assert_all_alone(rig: Rig, submits: list[Submit], but: str = "") -> None:
    for submit in submits:
        name = submit.identity.request
        if name != but:
            prompt = list(memoryview(submit.prompt_tokens).cast("i"))
            assert rig.output(name) == continuation(prompt, 0, 3)


@pytest.mark.parametrize("chunk", [48, 512])
def test_a_shared_prefix_is_computed_once_by_whoever_comes_first(chunk: int) -> None:
    rig = Rig(limits(token_budget=512, chunk_size=chunk), num_blocks=100, block_size=16)
    for submit in twins():
        rig.submit(submit)
    rig.run()
    assert_all_alone(rig, twins())
    assert num_computed(rig) == 128 + 8 * (5 + 2)


def test_a_twin_waits_for_one_step_and_then_joins_with_the_prefix() -> None:
    rig = Rig(limits(depth=1, token_budget=512, chunk_size=512), num_blocks=100, block_size=16)
    for submit in twins(3):
        rig.submit(submit)
    other = submit_message("other", tokens(20, 77), max_tokens=3)
    rig.submit(other)
    rig.run()
    assert rig.row_history[0] == [("r0", 133), ("other", 20)], "whoever waits for a twin is passed over"
    assert rig.row_history[1] == [("r0", 1), ("other", 1), ("r1", 5), ("r2", 5)]


def absorb_and_plan(rig: Rig) -> StepPlan:
    """As the service does: what can wait comes after the sends, and so after the next plan."""
    assert rig.scheduler.absorb(rig.executor.step(), rig.now) is None
    plan = rig.scheduler.plan(rig.now)
    assert plan is not None
    rig.executor.receive(plan)
    return plan


def test_a_twin_that_waits_joins_the_plan_that_follows_the_result() -> None:
    rig = Rig(limits(depth=1, token_budget=512, chunk_size=512), num_blocks=200, block_size=16)
    for submit in twins(2):
        rig.submit(submit)
    rig.plan()
    absorb_and_plan(rig)
    first, second = rig.scheduler.state.running
    assert second.blocks[:8] == first.blocks[:8] and second.num_cached_blocks == 8
    rig.run()
    assert_all_alone(rig, twins(2))


def test_blocks_that_nobody_waits_for_are_published_after_the_sends() -> None:
    rig = Rig(limits(depth=1, token_budget=512, chunk_size=512), num_blocks=200, block_size=16)
    rig.submit(twins(1)[0])
    rig.plan()
    cache = rig.scheduler.state.cache
    absorb_and_plan(rig)
    assert not cache.contents()
    rig.scheduler.tidy()
    assert len(cache.contents()) == 8
    rig.run()


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_blocks_filled_by_decoding_are_found_once_they_are_acknowledged(depth: int, block_size: int) -> None:
    rig = Rig(limits(depth=depth), block_size=block_size)
    rig.submit(submit_message("a", tokens(3), max_tokens=30))
    rig.turn()
    (run,) = rig.scheduler.state.running

    def check() -> None:
        if run.is_live:
            assert run.num_published == run.confirmed // block_size

    rig.until(lambda: not rig.scheduler.state.requests, check)


@pytest.mark.parametrize("chunk", [48, 512])
@pytest.mark.parametrize("how", ["cancel", "fail", "kill", "poison", "replace"])
def test_twins_go_on_when_the_first_does_not_come_through(how: str, chunk: int) -> None:
    """Whatever ends the computation that they wait for, they wait no longer and use nothing of it that is not there."""
    submits = twins(4)
    for num_events in range(1, 4):
        rig = Rig(limits(depth=2, token_budget=512, chunk_size=chunk), num_blocks=100, block_size=16)
        for submit in submits:
            rig.submit(submit)
        for _ in range(num_events - 1):
            rig.turns(1)
        rig.plan()
        but = "r0" if how in ("cancel", "poison", "replace") else ""
        if how == "cancel":
            rig.cancel(Identity("g", "r0", 1))
        elif how == "fail":
            rig.deliver(fails=True)
        elif how == "kill":
            rig.kill_executor()
        elif how == "poison":
            rig.deliver(poison=0)
        else:
            rig.submit(submit_message("r0", [3], incarnation=2))  # closes the older one
        rig.run()
        assert_all_alone(rig, submits, but)


def test_identical_prompts_that_generate_the_same_leave_one_block_each_content() -> None:
    """They compute the same blocks side by side: one copy is found by others, the other is freed, and neither takes
    the other's entry along when it is given up."""
    for length in (60, 64):
        rig = Rig(limits(depth=2), num_blocks=40, block_size=4)
        prompt = tokens(length)
        for name in ("a", "b"):
            rig.submit(submit_message(name, prompt, max_tokens=40))
        rig.run()
        assert rig.output("a") == rig.output("b") == continuation(prompt, 0, 40)
        check_entries(rig)
        for number in range(4):
            ask(rig, f"filler{number}", tokens(100, seed=number + 5), max_tokens=20)
            check_entries(rig)
        ask(rig, "again", prompt, max_tokens=40)


def check_entries(rig: Rig) -> None:
    """Every block that can be found leads back to a root by the keys of its tokens; nobody holds any when idle."""
    contents = rig.scheduler.state.cache.contents()
    size = rig.scheduler.state.pool.block_size
    for content in contents.values():
        assert len(content.tokens) == size * 4
        expected = blake2b(content.parent + content.tokens, digest_size=prefix.KEY_BYTES).digest()
        assert content.key == expected
    rig.assert_idle()


# what becomes of it


def test_the_least_recently_used_is_given_up_first() -> None:
    rig = Rig(num_blocks=1 + 9, block_size=4)
    prompts = {name: tokens(9, seed) for seed, name in enumerate(("old", "middle", "young"))}
    for name, prompt in prompts.items():
        ask(rig, name, prompt)
    assert ask(rig, "old again", prompts["old"]) == 8  # now the most recently used
    ask(rig, "filler", tokens(17, seed=9), max_tokens=1)  # four whole blocks and a fifth: five of nine
    assert ask(rig, "old still", prompts["old"]) == 8
    assert ask(rig, "middle gone", prompts["middle"]) == 0


def test_the_end_of_a_prefix_is_given_up_before_its_beginning() -> None:
    rig = Rig(num_blocks=1 + 6, block_size=4)
    ask(rig, "long", tokens(21), max_tokens=1)
    ask(rig, "filler", tokens(9, seed=1), max_tokens=1)
    assert ask(rig, "long again", tokens(21), max_tokens=1) == 12


def test_a_held_prefix_is_never_given_up() -> None:
    rig = Rig(limits(depth=1), num_blocks=1 + 8, block_size=4)
    rig.submit(submit_message("holder", tokens(9), max_tokens=20))
    rig.turns(1)
    ask_others = [submit_message(f"r{number}", tokens(9, seed=number + 1), max_tokens=2) for number in range(6)]
    for submit in ask_others:
        rig.submit(submit)
    rig.turns(8)
    rig.submit(submit_message("late", [*tokens(8), 3], max_tokens=2))
    rig.run()
    assert rig.close_of("late").num_cached_tokens == 8


def test_a_flush_forgets_what_nobody_holds() -> None:
    rig = Rig(block_size=4)
    ask(rig, "idle", tokens(9, seed=1))
    rig.submit(submit_message("held", tokens(9), max_tokens=20))
    rig.turns(2)
    rig.scheduler.flush_cache()
    rig.submit(submit_message("as held", tokens(9), max_tokens=2))
    rig.submit(submit_message("as idle", tokens(9, seed=1), max_tokens=2))
    rig.run()
    assert rig.close_of("as held").num_cached_tokens == 8
    assert rig.close_of("as idle").num_cached_tokens == 0


def test_a_new_executor_begins_with_an_empty_cache() -> None:
    rig = Rig(block_size=4)
    ask(rig, "before", tokens(9))
    rig.kill_executor()
    assert ask(rig, "after", tokens(9)) == 0


def test_a_new_executor_may_have_blocks_of_another_size() -> None:
    """Keys that were computed for the former size are of no use for it."""
    rig = Rig(block_size=4)
    prompt = tokens(24)
    rig.submit(submit_message("a", prompt, max_tokens=9))
    rig.turns(3)
    rig.shape = Shape(num_blocks=64, block_size=8)
    rig.kill_executor()
    rig.run()
    assert rig.output("a") == continuation(prompt, 0, 9)
    check_entries(rig)
    assert ask(rig, "again", prompt) == 16


def test_a_failed_step_keeps_the_cache() -> None:
    rig = Rig(block_size=4)
    ask(rig, "before", tokens(9))
    rig.submit(submit_message("fails", tokens(9, seed=1), max_tokens=2))
    rig.plan()
    rig.deliver(fails=True)
    rig.run()
    assert ask(rig, "after", tokens(9)) == 8


def test_a_collision_costs_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys of one byte some prompts collide; tokens are compared, so nobody is given another's KV."""
    monkeypatch.setattr(prefix, "KEY_BYTES", 1)
    rig = Rig(num_blocks=128, block_size=4)
    prompts = [tokens(5, seed=number) for number in range(60)]
    for number, prompt in enumerate(prompts):
        ask(rig, f"cold{number}", prompt)
    num_found = sum(ask(rig, f"warm{number}", prompt) == 4 for number, prompt in enumerate(prompts))
    assert 30 < num_found == len(rig.scheduler.state.cache.contents()) < 60, "one prompt is found for each key"
