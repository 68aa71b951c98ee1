"""Driving an executor by hand: plans from a few words, and a small scheduler that runs requests to their end."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.executor.backend import Backend
from services.executor.batch import Rows, StepBatch, pack
from services.executor.capacity import Capacity
from services.executor.core import ExecutorCore
from services.wire import columns
from services.wire.messages import (
    AppendBlocks,
    Hello,
    Logprobs,
    ModelCard,
    Op,
    Ready,
    RowFlag,
    Sampling,
    SlotInit,
    StepPlan,
    StepResult,
    StepStatus,
)

GREEDY = Sampling(temperature=0.0)


def small_capacity(
    vocab_size: int = 1000, num_blocks: int = 64, max_rows: int = 8, num_host_blocks: int = 0
) -> Capacity:
    """Blocks of 4 positions, a context of 128."""
    card = ModelCard(name="small", vocab_size=vocab_size, context_length=128, eos_token_ids=(2,))
    return Capacity(num_blocks, 4, max_rows, card, num_host_blocks)


@dataclass(frozen=True)
class Row:
    """One added row. tokens: its host tokens; empty for the future token."""

    slot: int
    position: int
    tokens: Sequence[int] = ()
    samples: bool = True
    generation: int | None = None  # the slot's number when not told otherwise
    flags: int = 0

    def all_flags(self) -> int:
        flags = self.flags | (RowFlag.SAMPLE if self.samples else 0)
        return int(flags if self.tokens else flags | RowFlag.FUTURE_INPUT)


def init(
    slot: int,
    num_prompt_tokens: int = 1,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    known: Sequence[int] = (),
) -> SlotInit:
    """A slot whose generation has the slot's own number."""
    return SlotInit(slot, slot, sampling, seed, num_prompt_tokens, columns.pack(known))


def append(slot: int, blocks: Sequence[int], start: int = 0) -> AppendBlocks:
    """Blocks joining one slot's table."""
    return AppendBlocks(
        columns.pack([slot] * len(blocks)),
        columns.pack(range(start, start + len(blocks))),
        columns.pack(blocks),
    )


def plan(
    step: int, ops: Sequence[Op] = (), rows: Sequence[Row] = (), dropped: Sequence[int] = (), epoch: int = 1
) -> StepPlan:
    """A StepPlan whose rows are all added."""
    return StepPlan(
        epoch=epoch,
        step=step,
        ops=tuple(ops),
        dropped=columns.pack(dropped),
        slots=columns.pack(row.slot for row in rows),
        generations=columns.pack(row.slot if row.generation is None else row.generation for row in rows),
        positions=columns.pack(row.position for row in rows),
        counts=columns.pack(len(row.tokens) or 1 for row in rows),
        flags=columns.pack(row.all_flags() for row in rows),
        host_tokens=columns.pack(token for row in rows for token in row.tokens),
    )


class Driver:
    """A core in an epoch, and plans numbered from 1."""

    def __init__(self, backend: Backend) -> None:
        self.core = ExecutorCore(backend, instance=77)
        self.epoch = 0
        self.step = 0
        self.num_rows = 0
        self.next_epoch()

    def next_epoch(self) -> Ready:
        """Open the next epoch, in which no slot lives and the baseline is empty."""
        self.epoch += 1
        self.num_rows = 0
        [ready] = self.core.handle(Hello(self.epoch))
        assert isinstance(ready, Ready)
        return ready

    def run(self, ops: Sequence[Op] = (), rows: Sequence[Row] = ()) -> StepResult:
        """One step with exactly these rows, whatever the step before had."""
        return self.carry(ops, rows, range(self.num_rows))

    def carry(self, ops: Sequence[Op] = (), rows: Sequence[Row] = (), dropped: Sequence[int] = ()) -> StepResult:
        """One step with the rows of the last, minus the dropped, and then these."""
        self.step += 1
        self.num_rows += len(rows) - len(dropped)
        [result] = self.core.handle(plan(self.step, ops, rows, dropped, self.epoch))
        assert isinstance(result, StepResult)
        return result


def tokens_of(result: StepResult) -> list[int]:
    """The tokens of a step that went well."""
    assert result.status == StepStatus.OK, result.detail
    return columns.unpack(result.tokens).tolist()


def candidates_of(logprobs: Logprobs | None) -> list[tuple[int, list[tuple[int, int, float]]]]:
    """(row, [(token, rank, logprob), ...]) for each reported token."""
    if logprobs is None:
        return []
    flat = list(
        zip(
            columns.unpack(logprobs.token_ids),
            columns.unpack(logprobs.ranks),
            columns.unpack_floats(logprobs.values),
            strict=True,
        )
    )
    ends = np.cumsum(columns.unpack(logprobs.counts)).tolist()
    starts = [0, *ends[:-1]]
    assert ends[-1] == len(flat)
    return [(row, flat[start:end]) for row, start, end in zip(columns.unpack(logprobs.rows), starts, ends, strict=True)]


def lone_row(slot: int, is_future: bool, samples: bool) -> StepBatch:
    """A batch of one row at position 0 of block 1, which no plan was asked for."""
    flags = (RowFlag.SAMPLE if samples else 0) | (RowFlag.FUTURE_INPUT if is_future else 0)
    one = np.ones(1, np.int32)
    rows = Rows(
        slots=one * np.int32(slot),
        generations=one,
        positions=one * np.int32(0),
        counts=one,
        flags=one * np.int32(flags),
        host_tokens=one[: 0 if is_future else 1],
    )
    return pack(rows, np.ones((slot + 1, 1), np.int32), block_size=4, step=1, received_ns=0)


@dataclass
class Request:
    """One sequence and what became of it."""

    prompt: list[int]
    num_outputs: int
    sampling: Sampling = GREEDY
    seed: int = 0
    chunk: int = 1000
    starts_at: int = 0  # the turn in which it joins
    outputs: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    planned: int = 0

    @property
    def is_over(self) -> bool:
        return len(self.outputs) == self.num_outputs


def generate(backend: Backend, requests: Sequence[Request], seed: int = 0) -> list[list[int]]:
    """Run the requests together, one row each a step, blocks handed out in a shuffled order; their outputs."""
    driver = Driver(backend)
    free = list(range(1, backend.capacity.num_blocks))
    random.Random(seed).shuffle(free)
    turn = 0
    while not all(request.is_over for request in requests):
        live = [
            (slot, request)
            for slot, request in enumerate(requests, 1)
            if not request.is_over and request.starts_at <= turn
        ]
        ops: list[Op] = []
        rows = [_next_row(slot, request, ops, free, backend.capacity.block_size) for slot, request in live]
        result = driver.run(ops, rows)
        tokens = iter(tokens_of(result))
        for (_, request), row in zip(live, rows, strict=True):
            if row.samples:
                request.outputs.append(next(tokens))
        for row_index, candidates in candidates_of(result.logprobs):
            live[row_index][1].logprobs.append(candidates[0][2])
        turn += 1
    return [request.outputs for request in requests]


def _next_row(slot: int, request: Request, ops: list[Op], free: list[int], block_size: int) -> Row:
    if not request.planned:
        known = request.prompt if request.sampling.needs_history else ()
        ops.append(init(slot, len(request.prompt), request.sampling, request.seed, known))
    inputs = request.prompt[request.planned : request.planned + request.chunk]
    count = len(inputs) or 1
    needed = -(-(request.planned + count) // block_size) - len(request.blocks)
    if needed > 0:
        blocks = [free.pop() for _ in range(needed)]
        ops.append(append(slot, blocks, len(request.blocks)))
        request.blocks.extend(blocks)
    row = Row(slot, request.planned, inputs, samples=request.planned + count >= len(request.prompt))
    request.planned += count
    return row
