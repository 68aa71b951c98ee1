"""Who has a step's prefill tokens, and who may come in: the order of service holds for running and waiting alike."""

from services.scheduler.core.policy import FAIR, FCFS, Policy, priority
from tests.unit.scheduler.rig import Rig, limits, submit_message


def rig_with_a_long_prompt(policy: Policy) -> Rig:
    """Thirty tokens of prefill in chunks of four, two of them planned; its tenant is `long`, its priority 0."""
    rig = Rig(limits(depth=1, token_budget=4, chunk_size=4), policy=policy)
    rig.submit(submit_message("long", [3] * 30, max_tokens=2, tenant="long"))
    rig.turns(2)
    return rig


def names_of_next_step(rig: Rig) -> list[str]:
    rig.turns(1)
    return [name for name, _ in rig.row_history[-1]]


def test_a_waiting_request_of_higher_priority_goes_before_the_chunks_of_a_long_prompt() -> None:
    rig = rig_with_a_long_prompt(priority(10**9))
    rig.submit(submit_message("urgent", [4] * 4, max_tokens=1, priority=1))
    assert names_of_next_step(rig) == ["urgent"]
    assert names_of_next_step(rig) == ["long"]
    rig.run()


def test_a_waiting_request_of_a_less_served_tenant_goes_before_the_chunks_of_a_long_prompt() -> None:
    rig = Rig(limits(depth=1, token_budget=4, chunk_size=4), policy=FAIR)
    rig.submit(submit_message("first", [5], max_tokens=25, tenant="short"))
    rig.submit(submit_message("long", [3] * 40, max_tokens=2, tenant="long"))
    rig.turns(4)
    rig.submit(submit_message("second", [4] * 3, max_tokens=1, tenant="short"))
    assert names_of_next_step(rig) == ["first", "second"]
    assert names_of_next_step(rig) == ["first", "long"]
    rig.run()


def test_a_waiting_request_that_comes_later_does_not_go_before_the_chunks_of_a_long_prompt() -> None:
    rig = rig_with_a_long_prompt(FCFS)
    rig.submit(submit_message("later", [4] * 4, max_tokens=1))
    assert [names_of_next_step(rig) for _ in range(5)] == [["long"]] * 5
    rig.run()


def test_nobody_is_preempted_in_a_plan_that_somebody_joins() -> None:
    """Of three blocks two are held, and the one that joins takes the third: the next chunk of another waits a step,
    though one after it holds a block; then it takes that."""
    rig = Rig(
        limits(depth=1, token_budget=8, chunk_size=4, forecast=False),
        num_blocks=4,
        block_size=4,
        policy=priority(10**9),
    )
    rig.submit(submit_message("low", [3] * 8, max_tokens=2))
    rig.submit(submit_message("last", [5] * 8, max_tokens=2))
    rig.turns(1)
    rig.submit(submit_message("urgent", [4] * 3, max_tokens=1, priority=1))
    assert names_of_next_step(rig) == ["urgent"]
    state = rig.scheduler.state
    assert state.counters.num_preemptions == 0 and len(state.running) == 2
    rig.submit(submit_message("more urgent", [4] * 3, max_tokens=2, priority=1))
    rig.run()
    assert state.counters.num_preemptions > 0
    assert [key.request for key in rig.closes] == ["urgent", "more urgent", "low", "last"]


def test_a_preempted_sequence_comes_back_whole() -> None:
    """Six grow in a pool for two, with small chunks and no cache. Whoever was preempted has room for all it had only
    when one that came before it has ended, so nobody is preempted more often than others came before it."""
    bounds = limits(token_budget=12, chunk_size=4, prefix_cache=False, forecast=False)
    rig = Rig(bounds, num_blocks=21, block_size=4)
    for number in range(6):
        rig.submit(submit_message(f"r{number}", [3] * 12, max_tokens=28))
    num_stays = dict.fromkeys((f"r{number}" for number in range(6)), 0)
    seen: set[int] = set()
    while rig.turn():
        for run in rig.scheduler.state.running:
            num_stays[run.sequence.key.request] += run.generation not in seen
            seen.add(run.generation)
    assert rig.scheduler.state.counters.num_preemptions > 3
    assert all(stays - 1 <= int(name[1:]) for name, stays in num_stays.items()), num_stays


def test_an_ending_run_gives_its_row_to_the_next_while_its_last_token_is_in_flight() -> None:
    rig = Rig(limits(depth=2, max_num_seqs=2), max_rows=4)
    for name, max_tokens in (("a", 3), ("b", 9), ("c", 9)):
        rig.submit(submit_message(name, [3], max_tokens=max_tokens, salt=name))
    rig.run()
    widths = [len(rows) for rows in rig.row_history]
    assert widths[:9] == [2] * 9


def test_a_failed_step_leaves_no_more_running_than_a_step_has_rows() -> None:
    """An ending run needs a row again; whoever came for its place goes back to the queue, and all get their tokens."""
    rig = Rig(limits(depth=3, max_num_seqs=2), max_rows=6)
    for name, max_tokens in (("a", 3), ("b", 3), ("c", 6), ("d", 6)):
        rig.submit(submit_message(name, [3], max_tokens=max_tokens, salt=name))
    state = rig.scheduler.state
    while len(state.running) < 4:
        while rig.plan() is not None:
            pass
        if len(state.running) < 4:
            rig.deliver()
    rig.deliver(fails=True)
    assert [run.sequence.key.request for run in state.running] == ["a", "b"]
    rig.run()
    assert [rig.close_of(name).num_output_tokens for name in "abcd"] == [3, 3, 6, 6]
