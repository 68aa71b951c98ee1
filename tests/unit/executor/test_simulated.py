"""The simulated backend: right memory gives the reference token whatever the path, wrong memory gives another."""

import random

import numpy as np
import pytest

from services.executor.capacity import Capacity
from services.executor.hash_cells import HashCells, simulated_token
from services.executor.pretended import FIRST_TOKEN
from services.executor.simulated import SimulatedBackend, open_simulated
from services.executor.timeline import Timeline
from services.runtime.settings import ExecutorSettings
from services.wire import columns
from services.wire.messages import CopyBlocks, CopyDirection, Op, SlotRetire, StepStatus
from tests.unit.executor.rig import Driver, Request, Row, append, generate, init, lone_row, small_capacity, tokens_of

INSTANT = Timeline(ExecutorSettings())


def simulated(capacity: Capacity | None = None, copy_lag: int = 0, eos: tuple[int, int] = (0, 0)) -> SimulatedBackend:
    capacity = capacity or small_capacity()
    return SimulatedBackend(capacity, HashCells(capacity, eos), INSTANT, copy_lag, is_debug=True)


def reference(prompt: list[int], num_outputs: int, seed: int = 0) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_outputs):
        tokens.append(simulated_token(tokens, seed, vocab_size=1000))
    return tokens[len(prompt) :]


def random_requests(seed: int) -> list[Request]:
    rng = random.Random(seed)
    return [
        Request(
            prompt=[rng.randrange(1000) for _ in range(rng.randint(1, 30))],
            num_outputs=rng.randint(1, 12),
            seed=rng.getrandbits(64),
            chunk=rng.choice([1, 3, 4, 7, 100]),
            starts_at=rng.randint(0, 6),
        )
        for _ in range(6)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_chunks_neighbours_and_blocks_change_no_token(seed: int) -> None:
    requests = random_requests(seed)
    outputs = generate(simulated(), requests, seed)
    assert outputs == [reference(request.prompt, request.num_outputs, request.seed) for request in requests]


def test_tokens_stay_in_their_range_and_eos_comes_as_often_as_asked() -> None:
    draws = [simulated_token([7, index], seed=3, vocab_size=1000, eos=(2, 5)) for index in range(2000)]
    others = [token for token in draws if token != 2]
    assert 320 < len(draws) - len(others) < 480
    assert min(others) >= FIRST_TOKEN and max(others) < 1000
    assert len(set(others)) > 700


def test_the_token_depends_on_seed_position_and_order() -> None:
    base = simulated_token([5, 6, 7], 1, 49152)
    variants = [
        simulated_token([5, 6, 7], 2, 49152),
        simulated_token([6, 5, 7], 1, 49152),
        simulated_token([5, 6], 1, 49152),
        simulated_token([5, 6, 7, 7], 1, 49152),
    ]
    assert base not in variants and len(set(variants)) == 4


def test_a_seed_beyond_64_bits_is_no_error() -> None:
    assert simulated_token([5], -1, 1000) == simulated_token([5], 2**64 - 1, 1000)


# Wrong memory ------------------------------------------------------------------------------------------------------

PROMPT = [40, 41, 42, 43, 44, 45]
RIGHT = reference(PROMPT, 1)[0]


def finish(driver: Driver, blocks: list[int]) -> int:
    """The last prompt token through a fresh slot that trusts `blocks` to hold the positions before it."""
    return tokens_of(driver.run([init(3, 6), append(3, blocks)], [Row(3, 5, PROMPT[5:])]))[0]


def prefilled(copy_lag: int = 0) -> Driver:
    """Slot 1 computed the first five tokens of PROMPT in blocks 9 and 3, slot 2 another prompt in 5 and 6."""
    driver = Driver(simulated(small_capacity(num_host_blocks=8), copy_lag))
    driver.run(
        [init(1, 6), init(2, 6), append(1, [9, 3]), append(2, [5, 6])],
        [Row(1, 0, PROMPT[:5], samples=False), Row(2, 0, [50, 41, 42, 43, 44], samples=False)],
    )
    return driver


def test_the_right_blocks_give_the_reference_token() -> None:
    assert finish(prefilled(), [9, 3]) == RIGHT


@pytest.mark.parametrize(
    "blocks",
    [[3, 9], [9, 6], [5, 3], [9, 20], [20, 3]],
    ids=["swapped", "tail of another", "head of another", "unwritten tail", "unwritten head"],
)
def test_wrong_blocks_change_the_token(blocks: list[int]) -> None:
    assert finish(prefilled(), blocks) != RIGHT


def test_a_block_with_the_same_tokens_after_another_prefix_changes_the_token() -> None:
    driver = Driver(simulated())
    same_tail = [1, 2, 3, 4]
    driver.run(
        [init(1), init(2), append(1, [10, 11]), append(2, [12, 13])],
        [Row(1, 0, [7, 7, 7, 7, *same_tail], samples=False), Row(2, 0, [8, 8, 8, 8, *same_tail], samples=False)],
    )
    mixed = driver.run([init(3), append(3, [10, 13, 14])], [Row(3, 8, [9])])
    assert tokens_of(mixed) != [simulated_token([7, 7, 7, 7, *same_tail, 9], 0, 1000)]


def test_a_block_that_was_freed_and_written_by_another_changes_the_token() -> None:
    driver = prefilled()
    driver.run([init(4), append(4, [9])], [Row(4, 0, [1], samples=False)])
    assert finish(driver, [9, 3]) != RIGHT


def test_a_block_read_before_it_is_written_changes_the_token() -> None:
    driver = Driver(simulated())
    early = driver.run(
        [init(1, 6), append(1, [9]), init(2, 6), append(2, [9, 3])],
        [Row(2, 4, PROMPT[4:]), Row(1, 0, PROMPT[:4], samples=False)],
    )
    assert tokens_of(early)[0] != RIGHT


# Copies ------------------------------------------------------------------------------------------------------------


def copy(number: int, direction: CopyDirection, sources: list[int], destinations: list[int]) -> CopyBlocks:
    return CopyBlocks(number, direction, columns.pack(sources), columns.pack(destinations))


def test_a_copy_within_the_device_is_there_for_the_rows_of_its_own_step() -> None:
    driver = prefilled()
    ops: list[Op] = [init(3, 6), copy(1, CopyDirection.WITHIN, [3], [30]), append(3, [9, 30])]
    result = driver.run(ops, [Row(3, 5, PROMPT[5:])])
    assert tokens_of(result) == [RIGHT] and not result.copies_done


def test_blocks_survive_a_swap_out_and_in() -> None:
    driver = prefilled()
    out = driver.run([copy(7, CopyDirection.OUT, [9, 3], [0, 1])])
    back = driver.run([copy(8, CopyDirection.IN, [0, 1], [21, 22])])
    assert columns.unpack(out.copies_done).tolist() == [7]
    assert columns.unpack(back.copies_done).tolist() == [8]
    assert finish(driver, [21, 22]) == RIGHT


def test_a_copy_lands_after_its_lag_and_an_empty_plan_waits_for_one() -> None:
    driver = prefilled(copy_lag=2)
    first = driver.run([copy(7, CopyDirection.OUT, [9], [0])], [Row(2, 5, [1])])
    second = driver.carry([copy(8, CopyDirection.OUT, [3], [1])])
    assert not first.copies_done and not second.copies_done
    assert columns.unpack(driver.run().copies_done).tolist() == [7]
    assert columns.unpack(driver.run().copies_done).tolist() == [8]
    assert not driver.run().copies_done


def test_a_block_reused_before_its_copy_was_reported_is_lost() -> None:
    driver = prefilled(copy_lag=1)
    driver.run([copy(7, CopyDirection.OUT, [9, 3], [0, 1]), init(4), append(4, [9])], [Row(4, 0, [1], samples=False)])
    driver.run()
    driver.run([copy(8, CopyDirection.IN, [0, 1], [21, 22])])
    driver.run()
    assert finish(driver, [21, 22]) != RIGHT


def test_a_new_epoch_lands_every_copy() -> None:
    driver = prefilled(copy_lag=5)
    driver.run([copy(7, CopyDirection.OUT, [9, 3], [0, 1])])  # an empty plan lands it at once
    driver.run([copy(8, CopyDirection.IN, [0, 1], [21, 22])], [Row(2, 5, [1])])
    driver.next_epoch()
    assert not driver.run().copies_done
    assert finish(driver, [21, 22]) == RIGHT


# The rest ----------------------------------------------------------------------------------------------------------


def test_a_consumed_future_is_poisoned_in_debug_mode() -> None:
    backend = simulated()
    backend.init_slot(init(1))
    with pytest.raises(RuntimeError, match="a future token was read twice, or before it was there"):
        backend.run(lone_row(1, is_future=True, samples=False))
    backend.run(lone_row(1, is_future=False, samples=True))
    backend.run(lone_row(1, is_future=True, samples=False))
    with pytest.raises(RuntimeError, match="a future token was read twice"):
        backend.run(lone_row(1, is_future=True, samples=False))


def test_the_settings_make_the_capacity() -> None:
    settings = ExecutorSettings(backend="simulated", block_size=8, max_rows=3, vocab_size=500, context_length=100)
    capacity = open_simulated(settings, "pretend").capacity
    assert capacity.card.name == "pretend" and capacity.card.vocab_size == 500
    assert capacity.num_blocks == 1 + 3 * 13
    assert capacity.max_blocks_per_slot == 13


def test_a_retired_slot_serves_the_next_generation() -> None:
    driver = Driver(simulated())
    driver.run([init(1), append(1, [1])], [Row(1, 0, [5])])
    result = driver.run([SlotRetire(1, 1), init(1), append(1, [2])], [Row(1, 0, [6])])
    assert result.status == StepStatus.OK
    assert tokens_of(result) == [simulated_token([6], 0, 1000)]
    assert np.frombuffer(result.n_out, np.int32).tolist() == [1]
