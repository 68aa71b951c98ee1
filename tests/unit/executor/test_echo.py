"""The echo backend: output token i is prompt token i, cyclic, through any blocks, chunks and preemptions."""

from services.executor.echo_cells import EchoCells
from services.executor.simulated import SimulatedBackend
from services.executor.timeline import Timeline
from services.runtime.settings import ExecutorSettings
from services.wire.messages import Op, RowFlag, Sampling, SlotRetire
from tests.unit.executor.rig import (
    Driver,
    Request,
    Row,
    append,
    candidates_of,
    generate,
    init,
    small_capacity,
    tokens_of,
)


def echo() -> SimulatedBackend:
    capacity = small_capacity()
    return SimulatedBackend(capacity, EchoCells(capacity), Timeline(ExecutorSettings()), is_debug=True)


def test_outputs_repeat_the_prompt_whatever_the_chunks_and_neighbours() -> None:
    requests = [
        Request([11, 12, 2, 14, 15], 12, chunk=2),
        Request([21], 3, starts_at=1),
        Request(list(range(100, 120)), 25, chunk=7, starts_at=2),
    ]
    assert generate(echo(), requests) == [
        [11, 12, 2, 14, 15, 11, 12, 2, 14, 15, 11, 12],
        [21, 21, 21],
        [*range(100, 120), *range(100, 105)],
    ]


def test_a_preempted_sequence_goes_on_where_it_was() -> None:
    driver = Driver(echo())
    driver.run([init(1, 3), append(1, [5, 6])], [Row(1, 0, [31, 32, 33])])
    assert tokens_of(driver.carry()) == [32]
    known = [31, 32, 33, 31, 32]
    again = driver.run([SlotRetire(1, 1), init(2, 3), append(2, [9, 8])], [Row(2, 0, known)])
    assert tokens_of(again) == [33]
    assert tokens_of(driver.carry()) == [31]


def test_a_prompt_read_from_shared_blocks_is_echoed_too() -> None:
    driver = Driver(echo())
    driver.run([init(1, 6), append(1, [5, 6])], [Row(1, 0, [31, 32, 33, 34, 35, 36])])
    shared = driver.run([init(2, 6), append(2, [5, 7])], [Row(2, 4, [35, 36])])
    assert tokens_of(shared) == [31]
    assert tokens_of(driver.carry()) == [32]


def test_logprobs_are_certain_and_only_for_those_who_ask() -> None:
    driver = Driver(echo())
    asks = Sampling(logprobs=3, prompt_logprobs=1)
    ops: list[Op] = [init(1, 2), init(2, 3, asks), append(1, [1]), append(2, [2, 3])]
    flags = int(RowFlag.PROMPT_LOGPROBS)
    first = driver.run(ops, [Row(1, 0, [5, 6]), Row(2, 0, [7, 8, 9], flags=flags)])
    assert candidates_of(first.logprobs) == [(1, [(7, 1, 0.0)])]
    assert candidates_of(first.prompt_logprobs) == [(1, [(8, 1, 0.0)]), (1, [(9, 1, 0.0)])]
    assert candidates_of(driver.carry().logprobs) == [(1, [(8, 1, 0.0)])]
