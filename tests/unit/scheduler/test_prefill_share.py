"""How prefill and decode share a step: the quantum that prefill always has, the time that decode rows may take."""

import random

import pytest

from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import Pace, Rig, limits, submit_message


def tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randint(2, 49) for _ in range(count)]


def start_decoding(rig: Rig, count: int, max_tokens: int = 200) -> None:
    for number in range(count):
        rig.submit(submit_message(f"d{number}", [2 + number], max_tokens=max_tokens))
    rig.turns(2)


def chunks_of(rig: Rig, name: str) -> list[int]:
    return [count for rows in rig.row_history for other, count in rows if other == name]


def test_decode_rows_come_first_and_prefill_has_what_they_leave() -> None:
    rig = Rig(limits(depth=1, token_budget=12, chunk_size=12), num_blocks=400)
    start_decoding(rig, 5)
    rig.submit(submit_message("long", tokens(30), max_tokens=1))
    rig.turns(6)
    assert chunks_of(rig, "long") == [7, 7, 7, 7, 2]
    assert all(sum(name.startswith("d") for name, _ in rows) == 5 for rows in rig.row_history[2:])


def test_decode_rows_leave_the_quantum_to_prefill() -> None:
    """Never more decode rows than leave room for it, so a long prompt is through in a bounded number of steps."""
    rig = Rig(limits(depth=2, token_budget=12, chunk_size=12, prefill_quantum=5), num_blocks=400, max_rows=16)
    for number in range(30):
        rig.submit(submit_message(f"d{number}", [2 + number], max_tokens=40))
    rig.turns(3)
    assert len(rig.scheduler.state.running) == 7
    for number in range(7, 30):
        rig.cancel(rig.scheduler.state.requests[f"d{number}"].identity)
    rig.cancel(rig.scheduler.state.requests["d0"].identity)
    rig.submit(submit_message("long", tokens(50), max_tokens=1))
    rig.run()
    assert rig.output("long") == continuation(tokens(50), 0, 1)
    shared = [dict(rows) for rows in rig.row_history if "long" in dict(rows) and len(rows) > 1]
    assert shared and all(rows["long"] >= 5 for rows in shared[:-1])


def test_without_decode_rows_a_chunk_takes_the_whole_budget() -> None:
    rig = Rig(limits(depth=1, token_budget=20, chunk_size=20, prefill_quantum=4, inter_token_us=1))
    rig.submit(submit_message("a", tokens(50), max_tokens=1))
    rig.run()
    assert chunks_of(rig, "a") == [20, 20, 10]


PACE = Pace(fixed_us=1000, token_us=100)


def paced(inter_token_us: int, prefill_quantum: int = 0) -> Rig:
    """Four rows decode on a device whose steps take 1 ms and 0.1 ms a token, long enough to know it."""
    bounds = limits(
        depth=1,
        token_budget=64,
        chunk_size=64,
        inter_token_us=inter_token_us,
        prefill_quantum=prefill_quantum,
        prefix_cache=False,
    )
    rig = Rig(bounds, num_blocks=400, context_length=2000, pace=PACE)
    for number in range(4):
        rig.submit(submit_message(f"w{number}", tokens(10 + number), max_tokens=6))
        rig.run()
    start_decoding(rig, 4)
    rig.turns(10)
    rig.row_history.clear()
    return rig


def test_a_step_with_decode_rows_keeps_to_its_time_while_prefill_goes_on() -> None:
    rig = paced(inter_token_us=3000)
    rig.submit(submit_message("long", tokens(200), max_tokens=1))
    rig.until(lambda: "long" not in rig.scheduler.state.requests)
    assert rig.output("long") == continuation(tokens(200), 0, 1)
    steps = [rows for rows in rig.row_history if "long" in dict(rows)]
    durations = [PACE.fixed_us + PACE.token_us * sum(count for _, count in rows) for rows in steps]
    assert max(durations) <= 3000 * 1.05
    assert all(duration >= 3000 * 0.9 for duration in durations[:-1]), "and uses the time that there is"
    assert all(len(rows) == 5 for rows in steps), "no decode row is left out"


@pytest.mark.parametrize(("quantum", "least"), [(0, 1), (7, 7)])
def test_a_target_that_cannot_be_met_leaves_prefill_its_quantum_or_one_token(quantum: int, least: int) -> None:
    rig = paced(inter_token_us=1, prefill_quantum=quantum)
    rig.submit(submit_message("long", tokens(30), max_tokens=1))
    rig.until(lambda: "long" not in rig.scheduler.state.requests)
    assert set(chunks_of(rig, "long")[:-1]) == {least}
    assert rig.output("long") == continuation(tokens(30), 0, 1)


def test_without_a_target_a_chunk_is_as_large_as_the_budget_allows() -> None:
    rig = paced(inter_token_us=0)
    rig.submit(submit_message("long", tokens(200), max_tokens=1))
    rig.turns(4)
    assert chunks_of(rig, "long") == [60, 60, 60, 20]


def test_a_plan_that_only_waits_for_a_copy_teaches_no_step_time() -> None:
    """Its duration is the copy's: were it learned, the target would be missed before it is."""
    rig = Rig(
        limits(depth=1, preemption="swap", forecast=False),
        num_blocks=9,
        block_size=4,
        num_host_blocks=16,
        copy_lag=2,
        pace=Pace(fixed_us=1000, token_us=100, block_us=50_000),
    )
    for name in ("a", "b"):
        rig.submit(submit_message(name, [5] * 5, max_tokens=24, salt=name))
    rig.run()
    empty = [index for index, rows in enumerate(rig.row_history) if not rows]
    assert empty, "nobody waited for a copy"
    assert rig.scheduler.state.step_time.num_samples == len(rig.row_history) - len(empty)


def test_endless_prefill_stops_no_decode_row() -> None:
    """Long prompts arrive all the time; the row that decodes is in every step, and misses none."""
    rig = Rig(limits(depth=2, token_budget=16, chunk_size=16, max_num_seqs=4), num_blocks=200, context_length=2000)
    rig.submit(submit_message("decodes", [5], max_tokens=60))
    rig.turns(1)
    number = 0
    for _ in range(59):
        while len(rig.scheduler.state.waiting) < 3:
            rig.submit(submit_message(f"long{number}", tokens(60, seed=number), max_tokens=1))
            number += 1
        rig.turns(1)
    with_row = [any(name == "decodes" for name, _ in rows) for rows in rig.row_history]
    assert all(with_row[:60]) and number > 10
    rig.scheduler.cancel_all(rig.now)
    rig.run()
