"""Running alone, poisoned KV and death notices: what a failure may and may not do to those around it."""

import pytest

from services.scheduler.core.policy import FCFS
from services.wire.messages import FailureReason, FinishReason, Identity
from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import Rig, limits, submit_message

PROMPT = [5, 6, 7, 8, 9]


def names_running(rig: Rig) -> set[str]:
    return {run.sequence.key.request for run in rig.scheduler.state.running}


def fail_twice(rig: Rig) -> None:
    """Whoever runs is suspected from now on."""
    for _ in range(2):
        rig.plan()
        rig.deliver(fails=True)


def test_a_suspect_that_comes_back_takes_a_place_and_does_not_add_one() -> None:
    """It was silent while others took every place; when its reader is back, one of them gives way."""
    rig = Rig(limits(max_num_seqs=2, max_unread=1, token_budget=2))
    rig.auto_credit = False
    rig.submit(submit_message("suspect", [5], max_tokens=12, gateway="silent"))
    rig.turn()
    rig.credit("silent")
    fail_twice(rig)
    for name in ("a", "b"):
        rig.submit(submit_message(name, [6], max_tokens=12, salt=name))
    rig.until(lambda: names_running(rig) == {"a", "b"}, lambda: rig.credit("g"))
    rig.auto_credit = True
    rig.credit("silent")
    rig.run()  # the rig holds every step against the bounds
    assert rig.output("suspect", gateway="silent") == continuation([5], 0, 12)


@pytest.mark.parametrize("num_host_blocks", [5, 16], ids=["recompute", "swap"])
@pytest.mark.parametrize("comes_back", ["swapped", "while it is copied out"])
def test_a_suspect_in_host_memory_gets_all_its_blocks_back(comes_back: str, num_host_blocks: int) -> None:
    """Two others must give way for it: by recompute where the host pool is full of the suspect itself, or one after the
    other, each by a copy out."""
    rig = Rig(
        limits(max_num_seqs=3, max_unread=1, preemption="swap"),
        num_blocks=9,
        block_size=4,
        num_host_blocks=num_host_blocks,
        copy_lag=3,
    )
    rig.auto_credit = False
    rig.submit(submit_message("suspect", [5] * 17, max_tokens=12, gateway="silent"))
    rig.turn()
    rig.credit("silent")
    fail_twice(rig)
    for name in ("a", "b"):
        rig.submit(submit_message(name, [6] * 13, max_tokens=8, salt=name))
    suspect = rig.scheduler.state.requests["suspect"].sequences[0]
    rig.until(lambda: suspect.swapped is not None, lambda: rig.credit("g"))
    if comes_back == "swapped":
        rig.until(lambda: names_running(rig) == {"a", "b"}, lambda: rig.credit("g"))
    rig.auto_credit = True
    rig.credit("silent")
    rig.run()
    assert rig.output("suspect", gateway="silent") == continuation([5] * 17, 0, 12)
    assert rig.output("a") == rig.output("b") == continuation([6] * 13, 0, 8)


def test_running_alone_lasts_until_the_next_token() -> None:
    rig = Rig(limits(depth=2), policy=FCFS)
    for name in ("a", "b"):
        rig.submit(submit_message(name, PROMPT, max_tokens=9, salt=name))
    fail_twice(rig)
    rig.run()
    widths = [len(rows) for rows in rig.row_history]
    first_pair = widths.index(2)
    assert {name for rows in rig.row_history[:first_pair] for name, _ in rows} == {"a", "b"}
    assert set(widths[:first_pair]) == {1}


def test_the_third_failure_in_a_row_ends_a_sequence_and_not_the_second() -> None:
    rig = Rig(limits(depth=1))
    rig.submit(submit_message("a", PROMPT, max_tokens=9))
    fail_twice(rig)
    assert not rig.closes
    rig.plan()
    rig.deliver(fails=True)
    assert rig.close_of("a").failure == FailureReason.STEP_FAILED
    rig.assert_idle()


def test_a_token_clears_the_blame() -> None:
    rig = Rig(limits(depth=1))
    rig.submit(submit_message("a", PROMPT, max_tokens=9))
    for _ in range(4):  # two failures in a row, then a token, over and over: never three in a row
        fail_twice(rig)
        rig.turns(1)
        assert not rig.scheduler.state.suspects
    rig.run()
    assert rig.close_of("a").reason == FinishReason.LENGTH


def test_a_death_blames_every_row_in_flight_and_a_failed_step_only_its_own() -> None:
    for dies, blamed in ((False, {"a"}), (True, {"a", "b"})):
        rig = Rig(limits(depth=2))
        rig.submit(submit_message("a", PROMPT, max_tokens=9))
        rig.plan()
        rig.submit(submit_message("b", PROMPT, max_tokens=9, salt="other"))
        rig.plan()
        if dies:
            rig.kill_executor()
        else:
            rig.deliver(fails=True)
        assert {sequence.key.request for sequence in rig.scheduler.state.suspects} == blamed
        rig.run()


def test_a_result_after_the_death_notice_is_nothing() -> None:
    rig = Rig(limits(depth=2))
    rig.submit(submit_message("a", PROMPT, max_tokens=5))
    rig.plan()
    late = rig.executor.step()
    rig.lose_executor()
    rig.absorb(late)
    assert rig.output("a") == []
    rig.open_executor()
    rig.run()
    assert rig.output("a") == continuation(PROMPT, 0, 5)


def test_requests_come_and_go_while_no_executor_is_there() -> None:
    """Between the notice and the next Ready: whoever was swapped or running ends cleanly, and nothing is planned."""
    rig = Rig(limits(preemption="swap"), num_blocks=9, block_size=4, num_host_blocks=8)
    for name in ("a", "b", "c"):
        rig.submit(submit_message(name, PROMPT, max_tokens=20, salt=name))
    rig.until(lambda: any(s.swapped is not None and s.swapped.is_there for s in rig.scheduler.state.waiting))
    rig.lose_executor()
    assert rig.plan() is None
    rig.cancel(Identity("g", "c", 1))
    rig.cancel(Identity("g", "a", 1))
    rig.submit(submit_message("d", PROMPT, max_tokens=4))
    rig.open_executor()
    rig.run()
    assert rig.output("b") == continuation(PROMPT, 0, 20) and rig.output("d") == continuation(PROMPT, 0, 4)


def test_a_failure_with_a_hello_still_open_is_met_by_the_next_executor() -> None:
    """A step fails, and the executor dies before it has answered the new epoch's Hello."""
    rig = Rig(limits(depth=2))
    rig.submit(submit_message("a", PROMPT, max_tokens=5))
    rig.plan()
    hello = rig.scheduler.absorb(rig.executor.step(fails=True), rig.now)
    assert hello is not None
    rig.kill_executor()
    rig.run()
    assert rig.output("a") == continuation(PROMPT, 0, 5)


# poisoned rows: the executor model refuses to let anybody else read their cells


def test_poisoned_kv_is_never_offered() -> None:
    rig = Rig(limits(depth=1, chunk_size=8), block_size=4)
    rig.submit(submit_message("bad", PROMPT * 3, max_tokens=5))
    rig.turns(1)
    rig.plan()
    rig.deliver(poison=0)
    assert rig.close_of("bad").failure == FailureReason.POISONED_ROW
    rig.submit(submit_message("next", PROMPT * 3, max_tokens=5))
    rig.run()
    assert rig.output("next") == continuation(PROMPT * 3, 0, 5)
    assert rig.close_of("next").num_cached_tokens == 0, "not even what came before the row that was noticed"


def test_poisoned_kv_of_a_preempted_run_is_withdrawn_too() -> None:
    """Its first chunk is published as it is preempted; the row that shows the poison is still in flight."""
    rig = Rig(limits(depth=2, chunk_size=8), block_size=4)
    rig.submit(submit_message("bad", PROMPT * 3, max_tokens=5))
    rig.turns(1)
    rig.plan()
    (run,) = rig.scheduler.state.running
    rig.scheduler.state.preempt(run)
    assert rig.scheduler.state.cache.contents()
    rig.deliver(poison=0)
    assert not rig.scheduler.state.cache.contents()
    rig.run()


def test_found_kv_that_may_be_what_is_bad_is_not_found_again() -> None:
    """Whoever computed it has gone unnoticed; the first to fail on it takes it out, and the next computes it anew."""
    rig = Rig(limits(depth=1), block_size=4)
    rig.submit(submit_message("unnoticed", PROMPT * 2, max_tokens=1))
    rig.run()
    rig.submit(submit_message("notices", PROMPT * 2, max_tokens=5))
    rig.submit(submit_message("shares", PROMPT * 2, max_tokens=5))
    rig.plan()
    rig.deliver(poison=0)
    assert rig.close_of("notices").num_cached_tokens == 8
    rig.submit(submit_message("next", PROMPT * 2, max_tokens=5))
    rig.run()
    assert rig.close_of("next").num_cached_tokens == 0
    assert rig.output("shares") == rig.output("next") == continuation(PROMPT * 2, 0, 5)


def test_a_poisoned_sequence_wastes_its_rows_in_flight_and_no_more() -> None:
    rig = Rig(limits(depth=3))
    rig.submit(submit_message("bad", PROMPT, max_tokens=50))
    for _ in range(3):
        rig.plan()
    rig.deliver(poison=0)
    rig.run()
    assert len(rig.row_history) == 3 and rig.output("bad") == []
