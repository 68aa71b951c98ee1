"""A backend over a random model, and decode steps of a given number of rows, as a scheduler would have them run.

`Decoding.run` keeps up to `depth` steps in flight from one thread: it launches while there is room, then waits for the
oldest. Events before and after each launch tell the device's own times: a step's, and the gap before the next.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter

import numpy as np
import torch

from services.executor.backend import Pending
from services.executor.batch import I32, Rows, StepBatch, pack
from services.executor.capacity import Capacity
from services.executor.config import LlamaConfig
from services.executor.cuda.backend import DeviceBackend, Options
from services.executor.cuda.choice import choose, facts_of
from services.executor.cuda.device import Device, Event
from services.executor.cuda.device_operations import PlainOperations, TritonOperations
from services.executor.cuda.memory import DeviceKv
from services.executor.cuda.opening import open_draw, sizes_of
from services.executor.torch_arrays import plain_blocks
from services.wire.messages import ModelCard, RowFlag, Sampling, SlotInit
from tests.gpu.shapes import Made, make

BLOCK_SIZE = 16
_FLAGS = np.int32(RowFlag.SAMPLE | RowFlag.FUTURE_INPUT)


@dataclass(frozen=True)
class Setup:
    """attention: as executor.attention. buckets: rows of the captured steps, rising; none: everything eager."""

    config: LlamaConfig
    dtype: torch.dtype
    max_rows: int
    positions: int  # of the longest row
    attention: str = "auto"
    buckets: tuple[int, ...] = ()


@dataclass
class Bench:
    """A backend and what it is made of."""

    backend: DeviceBackend
    made: Made
    setup: Setup
    device: Device
    operations: PlainOperations
    tables: I32  # [slots, blocks]


def operations_for(device: Device, setup: Setup) -> PlainOperations:
    """As the product chooses them."""
    choice = choose(facts_of(device.target, setup.dtype, BLOCK_SIZE), setup.attention)
    kind = TritonOperations if "triton" in (choice.decode, choice.mixed) else PlainOperations
    return kind(choice, device.num_processors, device.target)


def open_bench(device: Device, setup: Setup) -> Bench:
    """Every slot has all its blocks, shuffled; KV is random."""
    config, width = setup.config, -(-setup.positions // BLOCK_SIZE)
    operations = operations_for(device, setup)
    made = make(config, operations, torch.empty(0, dtype=setup.dtype, device=device.target))
    card = ModelCard(config.name, config.vocab_size, config.context_length, config.eos_token_ids)
    capacity = Capacity(1 + setup.max_rows * width, BLOCK_SIZE, setup.max_rows, card)
    blocks = plain_blocks(BLOCK_SIZE, config.num_kv_heads, config.head_dim, setup.dtype)
    kv = DeviceKv(capacity, config.num_layers, blocks, device)
    generator = torch.Generator(device.target).manual_seed(11)
    with device.working():
        for layer in kv.layers:
            for pool in layer:
                pool.normal_(generator=generator)
    options = Options(sizes_of(capacity, config, setup.buckets, setup.dtype), open_draw(operations.choice))
    backend = DeviceBackend(made.model, capacity, kv, device, options)
    shuffled = np.random.default_rng(7).permutation(np.arange(1, capacity.num_blocks, dtype=np.int32))
    tables = np.zeros((setup.max_rows + 1, width), np.int32)
    tables[1:] = shuffled.reshape(setup.max_rows, width)
    return Bench(backend, made, setup, device, operations, tables)


@dataclass
class Times:
    """Milliseconds, one entry a step; gaps are between the end of one step and the beginning of the next."""

    steps: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    launches: list[float] = field(default_factory=list)  # of the host
    kv_positions: int = 0  # read by all steps together
    tokens: list[list[int]] = field(default_factory=list)


@dataclass
class Decoding:
    """Rows 1 .. num_rows, whose lengths lie within a quarter of `context`."""

    bench: Bench
    num_rows: int
    context: int
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0))

    def __post_init__(self) -> None:
        spread = np.random.default_rng(3).integers(-self.context // 4, self.context // 4 + 1, self.num_rows)
        self._starts: I32 = (self.context + spread).astype(np.int32)

    def batch(self, step: int) -> StepBatch:
        """One future token a row; the first step brings host tokens, as after a slot's beginning."""
        one = np.ones(self.num_rows, np.int32)
        rows = Rows(
            slots=np.arange(1, self.num_rows + 1, dtype=np.int32),
            generations=one,
            positions=self._starts + np.int32(step),
            counts=one,
            flags=one * (_FLAGS if step else np.int32(RowFlag.SAMPLE)),
            host_tokens=np.zeros(0, np.int32) if step else np.arange(1, self.num_rows + 1, dtype=np.int32),
        )
        return pack(rows, self.bench.tables, BLOCK_SIZE, step, received_ns=0)

    def begin(self) -> None:
        """New generations in all slots."""
        for slot in range(1, self.num_rows + 1):
            self.bench.backend.init_slot(SlotInit(slot, 1, self.sampling, slot, int(self._starts[slot - 1]), b""))

    def run(self, depth: int, num_steps: int, between: Callable[[], object] = lambda: None) -> Times:
        """All from the beginning. between: called after each launch."""
        self.begin()
        times, flying = Times(), deque[Pending]()
        marks: list[tuple[Event, Event]] = []
        device = self.bench.device
        for step in range(num_steps):
            batch = self.batch(step)
            times.kv_positions += int(batch.kv_lens.sum())
            before, after = device.event(is_timed=True), device.event(is_timed=True)
            before.record()
            launched = perf_counter()
            flying.append(self.bench.backend.launch(batch))
            times.launches.append((perf_counter() - launched) * 1e3)
            after.record()
            marks.append((before, after))
            between()
            if len(flying) == depth:
                times.tokens.append(flying.popleft().wait().tokens.tolist())
        times.tokens.extend(flight.wait().tokens.tolist() for flight in flying)
        device.synchronize()
        times.steps = [after.ms_since(before) for before, after in marks]
        times.gaps = [later[0].ms_since(earlier[1]) for earlier, later in pairwise(marks)]
        return times
