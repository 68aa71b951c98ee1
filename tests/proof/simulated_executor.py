"""The product's simulated executor as the rig drives it, with faults on demand.

Its cells know what they depend on and its sampled token is a pure function of what a row reads back, so memory that is
stale, early, freed or wrongly shared changes a token. What it refuses (PlanError) and what nobody asked to fail is an
AssertionError here.
"""

import dataclasses
from functools import cache

import numpy as np

from services.executor.backend import Outcome
from services.executor.batch import StepBatch
from services.executor.capacity import Capacity
from services.executor.hash_cells import simulated_outputs
from services.executor.simulated import SimulatedBackend
from services.executor.timeline import Timeline
from services.runtime.settings import ExecutorSettings
from services.wire.messages import (
    ConstraintMessage,
    CopyBlocks,
    Hello,
    ModelCard,
    Prepare,
    Prepared,
    Ready,
    Sampling,
    SlotInit,
    StepResult,
    StepStatus,
)
from tests.proof.core_executor import CoreExecutor
from tests.proof.rules import EOS, VOCAB, Rule, RuledCells, rule_of, ruled_outputs
from tests.unit.scheduler.rig import Shape

GARBAGE = np.uint64(0xBAD0_BAD0_BAD0_BAD0)
INJECTED = "injected"
PLAIN = Sampling()


class FaultyBackend:
    """A simulated backend whose next step fails, or one of whose rows is not finite."""

    def __init__(self, capacity: Capacity, copy_lag: int, rules: dict[int, Rule]) -> None:
        self._cells = RuledCells(capacity, rules)
        self._inner = SimulatedBackend(capacity, self._cells, Timeline(ExecutorSettings()), copy_lag, is_debug=True)
        self.capacity = capacity
        self.begin_epoch = self._inner.begin_epoch
        self.fails = False
        self.poison: int | None = None

    def init_slot(self, op: SlotInit) -> None:
        self._inner.init_slot(op)

    def fail_slot(self, slot: int) -> None:
        self._inner.fail_slot(slot)

    def copy_blocks(self, op: CopyBlocks) -> None:
        self._inner.copy_blocks(op)

    def run(self, batch: StepBatch) -> Outcome:
        if self.fails:
            raise RuntimeError(INJECTED)
        outcome = self._inner.run(batch)
        if self.poison is None or self.poison >= batch.num_rows:
            return outcome
        self._spoil(batch, self.poison)
        return dataclasses.replace(outcome, poisoned=np.array([self.poison]))

    def _spoil(self, batch: StepBatch, row: int) -> None:
        """The row's cells are worth nothing: whoever reads them gets another token than it would get alone."""
        cells = batch.slot_mapping[batch.cu_seqlens_q[row] : batch.cu_seqlens_q[row + 1]]
        (chains, _), (digests, _), (block_digests, _) = self._cells.pools
        for pool in (chains, digests):
            flat = pool.reshape(-1)
            flat[cells] = np.bitwise_xor(flat[cells], GARBAGE)
        blocks = cells // self.capacity.block_size
        block_digests[blocks] = digests[blocks].sum(axis=1, dtype=np.uint64)


class SimulatedExecutor(CoreExecutor):
    """A core around a FaultyBackend. `asked`: constraints to be compiled, which takes as long as a test likes."""

    def __init__(self, instance: int, shape: Shape) -> None:
        card = ModelCard("simulated", VOCAB, shape.context_length, (EOS,))
        capacity = Capacity(shape.num_blocks, shape.block_size, shape.max_rows, card, shape.num_host_blocks)
        self.asked: dict[int, Rule] = {}
        self._rules: dict[int, Rule] = {}
        self._backend = FaultyBackend(capacity, shape.copy_lag, self._rules)
        super().__init__(self._backend, instance)
        self._may_fail = False

    def hello(self, hello: Hello) -> Ready:
        self._may_fail = False
        return super().hello(hello)

    def tell(self, message: ConstraintMessage) -> None:
        """Take in what is to be compiled, or what nobody follows any more."""
        if isinstance(message, Prepare):
            self.asked[message.number] = rule_of(message.constraint)
        else:
            del self._rules[message.number]

    def compile(self, number: int) -> Prepared:
        """The answer to one that was asked."""
        rule = self.asked.pop(number)
        if not rule.compiles:
            return Prepared(number, "it does not compile")
        self._rules[number] = rule
        return Prepared(number)

    def step(self, *, fails: bool = False, poison: int | None = None) -> StepResult:
        self._backend.fails, self._backend.poison = fails, poison
        self._may_fail |= fails
        result = super().step()
        assert result.status == StepStatus.OK or (self._may_fail and INJECTED in result.detail), result.detail
        return result


@cache
def alone(prompt: tuple[int, ...], seed: int, count: int, sampling: Sampling = PLAIN) -> list[int]:
    """What a request gets alone, as far as it gets before it has no token left to draw."""
    if sampling.constraint is not None:
        return ruled_outputs(rule_of(sampling.constraint), prompt, seed, count)
    outputs = simulated_outputs(SlotInit(1, 1, sampling, seed, len(prompt)), prompt, count, VOCAB)
    return [token for token in outputs if token is not None]
