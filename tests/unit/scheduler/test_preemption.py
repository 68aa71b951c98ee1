"""Who gives way, and how preemption is avoided: victim rules, the pool's bookkeeping, the look ahead."""

import pytest

from services.scheduler.core.blocks import BlockPool
from services.scheduler.core.forecast import CAUTIOUS_STEPS, has_future
from services.scheduler.core.policy import FCFS, Policy, VictimRule, choose_victim, priority
from services.scheduler.core.sequence import Run
from services.wire.messages import FinishReason
from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import Rig, limits, submit_message

PROMPT = [5, 6, 7, 8, 9]


def running(*lengths: int, priorities: tuple[int, ...] = (), block_size: int = 4) -> tuple[Rig, list[Run]]:
    """Runs of these many planned positions, in order of arrival."""
    rig = Rig(limits(depth=1, token_budget=512, chunk_size=512), num_blocks=200, block_size=block_size)
    for number, length in enumerate(lengths):
        level = priorities[number] if priorities else 0
        rig.submit(submit_message(f"r{number}", [2 + number] * length, max_tokens=9, salt=str(number), priority=level))
    rig.plan()
    return rig, list(rig.scheduler.state.running)


def victim(rig: Rig, runs: list[Run], rule: VictimRule, policy: Policy = FCFS, silent: int | None = None) -> int:
    """The index of the one that must give way."""

    def has_credit(sequence: object) -> bool:
        return silent is None or sequence is not runs[silent].sequence

    chosen = choose_victim(runs, policy, rule, has_credit, rig.scheduler.state.pool)
    assert chosen is not None
    return runs.index(chosen)


# victim rules


def test_lifo_takes_the_one_that_goes_last() -> None:
    rig, runs = running(4, 40, 4)
    assert victim(rig, runs, "lifo") == 2


def test_lru_takes_the_one_whose_last_row_is_longest_ago() -> None:
    rig, runs = running(4, 5, 4)
    assert [run.is_carried for run in runs] == [False, True, False], "the others need a block first"
    assert victim(rig, runs[1:], "lru") == 1, "a carried run had its last row in the last step"
    runs[0].last_planned_step -= 1
    assert victim(rig, runs, "lru") == 0


def test_cost_takes_the_most_blocks_for_each_token_to_compute_again() -> None:
    rig, runs = running(8, 5, 7)  # two blocks each
    assert victim(rig, runs, "cost") == 1


def test_cost_counts_only_what_it_gets() -> None:
    """The prefix that another shares gives nothing back and need not be computed again."""
    rig = Rig(limits(depth=1, token_budget=512, chunk_size=512), num_blocks=200, block_size=4)
    for name, prompt in (("stem", [3] * 16), ("shares", [3] * 16 + [4] * 4)):
        rig.submit(submit_message(name, prompt, max_tokens=30))
        rig.turns(2)
    rig.submit(submit_message("own", [7] * 19, max_tokens=30))
    rig.plan()
    runs = list(rig.scheduler.state.running)
    pool = rig.scheduler.state.pool
    assert [(pool.num_reclaimable(run.blocks), run.planned) for run in runs[1:]] == [(2, 22), (5, 19)]
    assert victim(rig, runs[1:], "cost") == 0, "2 blocks for 6 tokens, against 5 for 19"


def test_class_comes_before_rule() -> None:
    """A silent reader's run first, then the lowest priority, whatever the rule would say."""
    rig, runs = running(8, 5, 7, priorities=(0, 2, 1))
    assert victim(rig, runs, "cost", priority()) == 0
    assert victim(rig, runs, "cost", priority(), silent=2) == 2
    assert victim(rig, runs, "cost", FCFS) == 1, "under another policy priority is nothing"


def test_nobody_is_preempted_for_nothing() -> None:
    """A run whose every block is shared gives none back; if there are only such, nobody is chosen."""
    rig, runs = running(8, 8)
    pool = rig.scheduler.state.pool
    last = runs[1]
    pool.publish(last.blocks[0])
    pool.publish(last.blocks[1])
    pool.share(last.blocks)
    assert victim(rig, runs, "lifo") == 0
    assert choose_victim([last], FCFS, "lifo", lambda _: True, pool) is None
    pool.free(last.blocks)
    assert victim(rig, runs, "lifo") == 1


@pytest.mark.parametrize("rule", ["lifo", "lru", "cost"])
@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
def test_every_rule_and_mode_gives_everybody_the_same_tokens(rule: str, mode: str) -> None:
    rig = Rig(limits(victim=rule, preemption=mode), num_blocks=13, block_size=4, num_host_blocks=10, copy_lag=1)
    for number in range(6):
        rig.submit(submit_message(f"r{number}", PROMPT, max_tokens=25, seed=number))
    rig.run()
    assert rig.scheduler.state.counters.num_preemptions > 0
    for number in range(6):
        assert rig.output(f"r{number}") == continuation(PROMPT, number, 25)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_what_is_in_flight_when_a_sequence_is_preempted_is_delivered(depth: int) -> None:
    """Step by step: the victim's row is in flight, its result comes after the preemption, and counts."""
    rig = Rig(limits(depth=depth), num_blocks=9, block_size=4)
    for name in ("a", "b"):
        rig.submit(submit_message(name, PROMPT, max_tokens=20, salt=name))
    state = rig.scheduler.state
    rig.until(lambda: state.counters.num_preemptions > 0)
    (victim,) = state.waiting
    late, before = victim.late, len(rig.output("b"))
    assert 0 <= late <= depth - 1 and (late > 0 or depth == 1)
    for num_delivered in range(1, late + 1):
        rig.deliver()
        assert len(rig.output("b")) == before + num_delivered and victim.late == late - num_delivered
    rig.run()
    assert rig.output("a") == rig.output("b") == continuation(PROMPT, 0, 20)


# the pool


def test_a_block_is_handed_out_once_and_the_dummy_never() -> None:
    pool = BlockPool(5, 4, on_evict=lambda _: None)
    blocks = pool.allocate(4)
    assert sorted(blocks) == [1, 2, 3, 4] and pool.num_free == 0
    with pytest.raises(AssertionError, match="asked of 0 free"):
        pool.allocate(1)
    pool.free(blocks[:1])
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free(blocks[:1])
    with pytest.raises(AssertionError, match="not held"):
        pool.publish(blocks[0])
    with pytest.raises(AssertionError, match="neither held nor published"):
        pool.share(blocks[:1])


def test_idle_blocks_are_evicted_oldest_first_and_only_when_needed() -> None:
    evicted: list[int] = []
    pool = BlockPool(6, 4, evicted.append)
    blocks = pool.allocate(3)
    for block in blocks:
        pool.publish(block)
    pool.free(blocks)  # the last of a table rests first, and so is the oldest
    assert pool.num_free == 5 and pool.idle() == blocks[::-1]
    pool.allocate(2)
    assert not evicted
    pool.share(blocks[2:])  # held again: not idle any more
    assert pool.allocate(1) == [blocks[1]] and evicted == [blocks[1]]


# looking ahead


def learned(rig: Rig, num_outputs: int) -> None:
    """Let the scheduler see enough sequences end after so many tokens."""
    for number in range(8):
        rig.submit(submit_message(f"teacher{number}", [3], max_tokens=num_outputs))
        rig.run()


def test_nobody_joins_who_would_have_to_be_thrown_out_again() -> None:
    """Ten long requests in a pool for three: with the look ahead nobody is preempted, without it many are."""
    num_preemptions = {}
    for forecast in (True, False):
        rig = Rig(limits(forecast=forecast), num_blocks=25, block_size=4)
        learned(rig, 24)
        for number in range(10):
            rig.submit(submit_message(f"r{number}", PROMPT, max_tokens=24, salt=str(number)))
        rig.run()
        num_preemptions[forecast] = rig.scheduler.state.counters.num_preemptions
        assert all(close.reason == FinishReason.LENGTH for close in rig.closes.values())
    assert num_preemptions[True] == 0 < num_preemptions[False]


@pytest.mark.parametrize(("chunk", "budget"), [(4, 8), (8, 16), (16, 64), (4, 64)])
def test_a_prompt_that_is_half_computed_is_counted_whole(chunk: int, budget: int) -> None:
    """Ten long prompts in a pool for three, before anything is known of outputs: none is begun to be thrown out."""
    rig = Rig(limits(chunk_size=chunk, token_budget=budget), num_blocks=49, block_size=4)
    for number in range(10):
        rig.submit(submit_message(f"r{number}", [3 + number] * 60, max_tokens=4))
    rig.run()
    assert rig.scheduler.state.counters.num_preemptions == 0
    assert sum(count for step in rig.row_history for _, count in step) == 10 * (60 + 3), "a token is computed once"


def test_before_anything_is_known_and_for_one_alone_anybody_may_try() -> None:
    rig = Rig(num_blocks=9, block_size=4)
    rig.submit(submit_message("a", PROMPT, max_tokens=25))
    (sequence,) = rig.scheduler.state.waiting
    assert has_future(rig.scheduler.state, sequence, 0), "nobody runs"
    rig.plan()
    rig.submit(submit_message("b", PROMPT, max_tokens=25))
    (sequence,) = rig.scheduler.state.waiting
    assert has_future(rig.scheduler.state, sequence, 0), "nothing is known"


def test_after_a_preemption_it_is_more_careful_for_a_while() -> None:
    """Outputs of very different lengths, so that the mean and the mean with two spreads lead to different answers."""
    rig = Rig(num_blocks=17, block_size=4)
    for number in range(12):
        rig.submit(submit_message(f"teacher{number}", [3], max_tokens=2 if number % 2 else 22))
        rig.run()
    rig.submit(submit_message("runs", PROMPT, max_tokens=50))
    rig.turns(1)
    rig.submit(submit_message("asks", PROMPT * 2, max_tokens=45))
    state = rig.scheduler.state
    (sequence,) = state.waiting
    assert has_future(state, sequence, 0)
    state.last_preemption_step = state.last_step
    assert not has_future(state, sequence, 0)
    state.steps.last += CAUTIOUS_STEPS
    assert has_future(state, sequence, 0)
