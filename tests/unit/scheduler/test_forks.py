"""The samples of one request share the KV of their prompt, and each gets what it would get alone."""

import random

import pytest

from services.scheduler.core.admission import seed_of_sample
from services.scheduler.core.policy import FAIR, STATIC, priority
from services.scheduler.core.sequence import Run
from services.scheduler.core.tenant import DECODE_WEIGHT, PREFILL_WEIGHT
from services.wire import columns
from services.wire.messages import (
    CopyBlocks,
    CopyDirection,
    FailureReason,
    FinishReason,
    Identity,
    SequenceKey,
    SlotInit,
    Submit,
)
from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import Rig, limits, submit_message

SEED = 9


def prompt_of(length: int) -> list[int]:
    rng = random.Random(length)
    return [rng.randint(2, 49) for _ in range(length)]


def ask(rig: Rig, length: int, n: int, max_tokens: int = 6, name: str = "a", priority: int = 0) -> Submit:
    submit = submit_message(name, prompt_of(length), max_tokens=max_tokens, n=n, seed=SEED, priority=priority)
    assert rig.submit(submit) is None
    return submit


def assert_alone(rig: Rig, submit: Submit) -> None:
    """Each sample has the tokens, the index and the end that its seed gives it alone."""
    prompt, max_tokens = list(columns.unpack(submit.prompt_tokens)), submit.stopping.max_tokens
    assert max_tokens is not None
    for index in range(submit.n):
        wanted = continuation(prompt, seed_of_sample(submit.seed, index), max_tokens)
        assert rig.output(submit.identity.request, index) == wanted
        close = rig.close_of(submit.identity.request, index)
        assert (close.reason, close.num_output_tokens) == (FinishReason.LENGTH, max_tokens)
    assert sum(key.request == submit.identity.request for key in rig.closes) == submit.n


def forks(rig: Rig) -> int:
    return rig.scheduler.state.counters.num_forks


def num_computed(rig: Rig) -> int:
    return sum(count for rows in rig.row_history for _, count in rows)


def copied_tails(rig: Rig) -> int:
    copies = [op for plan in rig.plans for op in plan.ops if isinstance(op, CopyBlocks)]
    return sum(columns.length(op.sources) for op in copies if op.direction == CopyDirection.WITHIN)


def runs(rig: Rig) -> list[Run]:
    """By index of the sample."""
    return sorted(rig.scheduler.state.running, key=lambda run: run.sequence.key.index)


# what is shared


def most_blocks_held(prompt: int, n: int, max_tokens: int, *, prefix_cache: bool) -> int:
    """The most blocks held at any time while one request runs."""
    bounds = limits(token_budget=512, chunk_size=512, prefix_cache=prefix_cache)
    rig = Rig(bounds, num_blocks=400, block_size=16, context_length=2048)
    submit = ask(rig, prompt, n, max_tokens)
    pool = rig.scheduler.state.pool
    held = [0]
    rig.until(lambda: not rig.scheduler.state.requests, lambda: held.append(pool.num_total - pool.num_free))
    assert_alone(rig, submit)
    assert forks(rig) == n - 1 and pool.num_free == pool.num_total
    return max(held)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_four_samples_of_a_long_prompt_hold_little_more_than_one(prefix_cache: bool) -> None:
    one = most_blocks_held(1000, 1, 1, prefix_cache=prefix_cache)
    four = most_blocks_held(1000, 4, 100, prefix_cache=prefix_cache)
    num_outputs = 4 * -(-100 // 16)
    assert one == 63
    assert four < 1.2 * one + num_outputs
    # 62 blocks are shared; each holds the other 38 positions of its prompt and 99 tokens of its output by itself.
    assert four == 62 + 4 * -(-(1000 - 62 * 16 + 99) // 16)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("length", [2, 3, 4, 5, 8, 9, 11])
def test_every_position_of_the_prompt_but_the_last_is_computed_once(length: int, depth: int) -> None:
    """Blocks of 4: with 5 and 9 tokens there is no tail, with less than 5 nothing but a tail."""
    rig = Rig(limits(depth=depth, prefix_cache=False), block_size=4)
    submit = ask(rig, length, 3)
    rig.run()
    assert_alone(rig, submit)
    assert forks(rig) == 2
    assert num_computed(rig) == (length - 1) + 3 * 6, "the last position of the prompt and five outputs, each sample"
    assert copied_tails(rig) == (0 if (length - 1) % 4 == 0 else 2)


def test_a_prompt_of_one_token_has_nothing_to_share() -> None:
    rig = Rig()
    submit = ask(rig, 1, 3)
    rig.plan()
    assert len(rig.scheduler.state.running) == 3, "nobody waits for the others"
    rig.run()
    assert_alone(rig, submit)
    assert forks(rig) == 0


def test_full_blocks_are_shared_and_the_tail_is_each_ones_own() -> None:
    rig = Rig(limits(prefix_cache=False), block_size=4)
    ask(rig, 11, 3, max_tokens=20)
    rig.until(lambda: forks(rig) == 2)
    parent, *children = runs(rig)
    for child in children:
        assert child.blocks[:2] == parent.blocks[:2] and len(child.blocks) == 3
    assert len({run.blocks[2] for run in (parent, *children)}) == 3
    holders = rig.scheduler.state.pool.holders()
    assert [holders[block] for block in parent.blocks[:3]] == [3, 3, 1]


def test_samples_of_others_share_nothing() -> None:
    """The same prompt asked twice is two requests; without a prefix cache each computes it."""
    rig = Rig(limits(prefix_cache=False), block_size=4)
    submits = [ask(rig, 9, 2, name=name) for name in ("a", "b")]
    rig.run()
    for submit in submits:
        assert_alone(rig, submit)
    assert num_computed(rig) == 2 * (8 + 2 * 6)


# when


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_sample_forks_once_the_prompt_is_acknowledged_and_not_before(depth: int) -> None:
    """The prompt of 10 goes in chunks of 4; the third chunk completes it."""
    rig = Rig(limits(depth=depth, chunk_size=4, prefix_cache=False), block_size=4)
    ask(rig, 10, 2, max_tokens=20)
    rig.plan()
    (parent,) = rig.scheduler.state.running

    def check() -> None:
        assert (len(rig.scheduler.state.running) == 2) <= (parent.confirmed >= 9)

    rig.until(lambda: parent.confirmed >= 9, check)
    assert rig.plan() is not None and len(rig.scheduler.state.running) == 2
    child = runs(rig)[1]
    assert (child.confirmed, child.planned) == (8, 10), "a copied tail is planned, not confirmed"
    rig.until(lambda: child.confirmed > 8)
    assert child.confirmed >= 10 and len(child.sequence.tokens) > 10


def test_a_chunk_that_ends_one_short_of_the_prompt_is_enough() -> None:
    rig = Rig(limits(depth=1, chunk_size=8), block_size=4)
    submit = ask(rig, 9, 2)
    rig.turn()
    rig.plan()
    assert [run.planned for run in runs(rig)] == [9, 9], "both compute the last position in the same step"
    rig.run()
    assert_alone(rig, submit)


def test_others_join_while_samples_wait_for_their_prompt() -> None:
    rig = Rig(limits(chunk_size=4, token_budget=8, prefix_cache=False), block_size=4)
    ask(rig, 20, 3)
    ask(rig, 3, 1, name="b")
    rig.plan()
    assert {run.sequence.key.request for run in rig.scheduler.state.running} == {"a", "b"}
    rig.run()


# who can not


def test_samples_of_one_token_each_are_ordinary() -> None:
    """The first has ended by the time it could be forked from; nobody waits for ever."""
    rig = Rig(limits(prefix_cache=False))
    submit = ask(rig, 9, 3, max_tokens=1)
    rig.run()
    assert_alone(rig, submit)
    assert forks(rig) == 0


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3])
def test_samples_that_find_no_slot_wait_and_fork_from_whoever_runs_then(max_num_seqs: int) -> None:
    rig = Rig(limits(max_num_seqs=max_num_seqs, prefix_cache=False), block_size=4)
    submit = ask(rig, 9, 5)
    rig.turn()
    late = ask(rig, 2, 1, name="b")
    rig.run()
    assert_alone(rig, submit)
    assert_alone(rig, late)
    assert list(rig.closes)[-1].request == "b", "nobody overtakes who waits for a slot"
    assert forks(rig) == 4, "even who waits for the end of the last one takes the prompt over from it"


def test_samples_that_find_no_block_wait() -> None:
    """Eight blocks: the prompt holds three, each sample another two in the end."""
    rig = Rig(limits(prefix_cache=False), num_blocks=9, block_size=4)
    submit = ask(rig, 9, 6, max_tokens=8)
    rig.run()
    assert_alone(rig, submit)
    assert forks(rig) > 0


def test_samples_of_a_first_one_that_is_preempted_early_are_ordinary() -> None:
    """A higher priority takes the place of the first while it reads the prompt; there is nothing to fork from."""
    bounds = limits(chunk_size=4, token_budget=4, max_num_seqs=1, prefix_cache=False)
    rig = Rig(bounds, policy=priority(10**9), block_size=4)
    submit = ask(rig, 12, 2)
    rig.turn()
    urgent = ask(rig, 5, 1, name="b", priority=1)
    rig.until(lambda: rig.scheduler.state.counters.num_preemptions > 0)
    rig.run()
    assert_alone(rig, submit)
    assert_alone(rig, urgent)


@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("victim", ["lifo", "lru", "cost"])
def test_preempted_samples_come_back_whole(mode: str, prefix_cache: bool, victim: str) -> None:
    """Four grow to 9 + 20 positions in a pool of 12 blocks; shared blocks are copied out as any other."""
    bounds = limits(preemption=mode, prefix_cache=prefix_cache, victim=victim, forecast=False)
    rig = Rig(bounds, num_blocks=13, block_size=4, num_host_blocks=30, copy_lag=1)
    submit = ask(rig, 9, 4, max_tokens=20)
    rig.run()
    assert_alone(rig, submit)
    assert rig.scheduler.state.counters.num_preemptions > 0
    if mode == "swap":
        outs = [op for plan in rig.plans for op in plan.ops if isinstance(op, CopyBlocks)]
        assert any(op.direction == CopyDirection.OUT and columns.length(op.sources) > 2 for op in outs)


def test_the_first_comes_back_on_the_prompt_of_another() -> None:
    """A preempted sample shares the prompt again and computes no more than its own tokens."""
    rig = Rig(limits(prefix_cache=False), block_size=4)
    submit = ask(rig, 9, 2, max_tokens=20)
    rig.turns(6)
    state = rig.scheduler.state
    first = runs(rig)[0]
    state.preempt(first)
    rig.until(lambda: first.sequence.run is not None)
    assert first.sequence.run is not None
    assert first.sequence.run.blocks[:2] == runs(rig)[1].blocks[:2]
    rig.run()
    assert_alone(rig, submit)
    assert forks(rig) == 1, "only who joins for the first time is counted"


def test_a_copied_tail_is_confirmed_with_the_step_that_copied_it() -> None:
    """A sample that comes back with outputs, in chunks that do not sample: nothing but the step says what it has."""
    rig = Rig(limits(depth=1, chunk_size=2, prefix_cache=False), block_size=4)
    submit = ask(rig, 10, 2, max_tokens=20)
    rig.until(lambda: len(runs(rig)) == 2 and runs(rig)[0].sequence.num_output_tokens >= 8)
    state = rig.scheduler.state
    first = runs(rig)[0].sequence
    assert first.run is not None
    state.preempt(first.run)
    rig.until(lambda: first.run is not None)
    run = first.run
    assert run is not None and (run.confirmed, run.planned) == (8, 11), "a tail of one, and a chunk"
    rig.deliver()
    assert run.confirmed == 11
    rig.run()
    assert_alone(rig, submit)


# failures


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_failed_step_loses_the_tail_and_keeps_what_is_shared(depth: int) -> None:
    rig = Rig(limits(depth=depth, prefix_cache=False), block_size=4)
    submit = ask(rig, 11, 2)
    rig.until(lambda: forks(rig) == 1)
    rig.until(lambda: runs(rig)[1] in rig.scheduler.state.inflight[0].rows)
    rig.deliver(fails=True)
    parent, child = runs(rig)
    assert parent.confirmed >= 10 and child.confirmed == child.planned == 8
    assert child.blocks[:2] == parent.blocks[:2]
    rig.run()
    assert_alone(rig, submit)


def test_a_dead_executor_takes_the_shared_blocks_with_it() -> None:
    rig = Rig(limits(prefix_cache=False), block_size=4)
    submit = ask(rig, 11, 3)
    rig.until(lambda: forks(rig) == 2)
    rig.kill_executor()
    rig.run()
    assert_alone(rig, submit)


def test_a_poisoned_first_sample_ends_alone() -> None:
    rig = Rig(limits(prefix_cache=False), block_size=4)
    ask(rig, 11, 3)
    rig.until(lambda: forks(rig) == 2)
    rig.until(lambda: len(rig.scheduler.state.inflight[0].rows) == 3)
    rig.deliver(poison=0)
    rig.run()
    assert rig.close_of("a").failure == FailureReason.POISONED_ROW
    for index in (1, 2):
        assert rig.output("a", index) == continuation(prompt_of(11), seed_of_sample(SEED, index), 6)


@pytest.mark.parametrize("num_turns", range(7))
@pytest.mark.parametrize("is_planned", [True, False])
def test_a_cancel_frees_every_block_at_once(num_turns: int, is_planned: bool) -> None:
    rig = Rig(limits(chunk_size=4), block_size=4)
    ask(rig, 14, 4, max_tokens=20)
    rig.turns(num_turns)
    if is_planned:
        rig.plan()
    rig.cancel(Identity("g", "a", 1))
    state = rig.scheduler.state
    assert state.pool.num_free == state.pool.num_total and not state.running and not len(state.waiting)
    assert {close.reason for close in rig.closes.values()} == {FinishReason.CANCELLED} and len(rig.closes) == 4
    rig.run()


# what it costs


def test_the_shared_prompt_is_charged_once() -> None:
    rig = Rig(policy=FAIR, block_size=4)
    ask(rig, 11, 4)
    (tenant,) = {sequence.tenant for sequence in rig.scheduler.state.waiting}
    rig.run()
    num_computed_tokens = 10 + 4  # the last position of the prompt is computed by each
    assert tenant.served == num_computed_tokens * PREFILL_WEIGHT + 4 * 6 * DECODE_WEIGHT


def test_the_prompt_and_what_was_cached_of_it_are_counted_once() -> None:
    rig = Rig(block_size=4)
    for name in ("cold", "warm"):
        ask(rig, 11, 3, name=name)
        rig.run()
    counters = rig.scheduler.state.counters
    assert (counters.num_prompt_tokens, counters.num_cached_tokens) == (2 * 11, 8)
    assert [rig.close_of("warm", index).num_cached_tokens for index in range(3)] == [8, 8, 8]


def test_looking_ahead_counts_shared_blocks_once() -> None:
    """Eight samples of ten blocks each find a future in a pool of thirty."""
    rig = Rig(limits(prefix_cache=False), num_blocks=31, block_size=4)
    for number in range(8):
        ask(rig, 2, 1, max_tokens=4, name=f"short{number}")
    rig.run()
    assert rig.scheduler.state.output_length.is_known
    submit = ask(rig, 40, 8, max_tokens=4)
    rig.until(lambda: len(rig.scheduler.state.running) == 8)
    rig.run()
    assert_alone(rig, submit)
    assert rig.scheduler.state.counters.num_preemptions == 0


def test_only_the_first_sample_asks_for_logprobs_of_the_prompt() -> None:
    rig = Rig(block_size=4)
    rig.submit(submit_message("a", prompt_of(11), n=3, max_tokens=6, prompt_logprobs=2))
    rig.run()
    inits = [op for plan in rig.plans for op in plan.ops if isinstance(op, SlotInit)]
    assert [op.sampling.prompt_logprobs for op in inits] == [2, None, None]
    assert num_computed(rig) == 10 + 3 * 6


def test_a_first_sample_that_is_not_scored_yet_computes_its_prompt_again() -> None:
    """The step in which both compute the last position fails: the other one keeps the prompt, and it is not forked
    from, since the logprobs would be missing."""
    rig = Rig(limits(depth=1, chunk_size=8), block_size=4)
    submit = submit_message("a", prompt_of(9), n=2, max_tokens=6, seed=SEED, prompt_logprobs=0)
    rig.submit(submit)
    rig.turn()
    rig.plan()
    assert [run.planned for run in runs(rig)] == [9, 9]
    rig.deliver(fails=True)
    rig.run()
    assert_alone(rig, submit)
    assert rig.scored == {SequenceKey("g", "a", 1, 0): prompt_of(9)[1:]}


def test_a_static_batch_takes_the_samples_of_those_in_it_and_nobody_else() -> None:
    rig = Rig(limits(prefix_cache=False), policy=STATIC, block_size=4)
    submit = ask(rig, 9, 3)
    rig.turns(2)
    late = ask(rig, 2, 1, name="b")
    rig.until(lambda: len(rig.closes) == 3)
    assert forks(rig) == 2 and not rig.output("b")
    rig.run()
    assert_alone(rig, submit)
    assert_alone(rig, late)
