"""The backends without a model, simulated and echo: real slots, blocks, copies and step times, no torch.

What a cell holds and which token follows is for the Cells (hash_cells.py, echo_cells.py). With is_debug a consumed
future token is replaced by -1, and reading it again is an error.
"""

import numpy as np

from services.executor.backend import NO_ROWS, NO_TOKENS, Outcome
from services.executor.batch import I32, I64, StepBatch
from services.executor.capacity import Capacity, count_blocks, count_host_blocks, free_memory
from services.executor.cells import Cells, Copies, Drawn
from services.executor.echo_cells import EchoCells
from services.executor.hash_cells import HashCells
from services.executor.timeline import Timeline
from services.runtime.settings import ExecutorSettings
from services.wire import columns
from services.wire.messages import CopyBlocks, Logprobs, ModelCard, SlotInit

CONSUMED = -1

_CELL_BYTES = {"simulated": 16, "echo": 4}


class SimulatedBackend:
    """A Backend whose device is a timeline and whose model is a set of cells."""

    def __init__(
        self, capacity: Capacity, cells: Cells, timeline: Timeline, copy_lag: int = 0, is_debug: bool = False
    ) -> None:
        self._capacity = capacity
        self._cells = cells
        self._timeline = timeline
        self._copies = Copies(cells.pools, copy_lag)
        self._is_debug = is_debug
        num_slots = capacity.max_rows + 1
        self._last_token: I32 = np.zeros(num_slots, np.int32)
        self._num_prompt_tokens: I32 = np.zeros(num_slots, np.int32)
        self._wants_logprobs = np.zeros(num_slots, np.bool_)

    @property
    def capacity(self) -> Capacity:
        """What Ready reports."""
        return self._capacity

    def begin_epoch(self) -> None:
        """Land every copy."""
        self._copies.finish()

    def init_slot(self, op: SlotInit) -> None:
        """A slot begins a generation. What is honoured of its sampling is for the cells."""
        self._last_token[op.slot] = CONSUMED if self._is_debug else 0
        self._num_prompt_tokens[op.slot] = op.num_prompt_tokens
        self._wants_logprobs[op.slot] = op.sampling.logprobs is not None
        self._cells.init_slot(op)

    def fail_slot(self, slot: int) -> None:
        """last_token becomes 0, and nothing more is reported."""
        self._last_token[slot] = 0
        self._wants_logprobs[slot] = False
        self._num_prompt_tokens[slot] = 0

    def copy_blocks(self, op: CopyBlocks) -> None:
        """Order a copy."""
        self._copies.order(op)

    def run(self, batch: StepBatch) -> Outcome:
        """Compute at once, then let the step's time pass."""
        drawn = self._advance(batch) if batch.num_rows else Drawn.all(NO_TOKENS)
        ran = self._timeline.pass_step(batch)
        return Outcome(
            tokens=drawn.tokens,
            poisoned=NO_ROWS,
            logprobs=self._logprobs(batch, drawn),
            prompt_logprobs=self._prompt_logprobs(batch) if len(batch.prompt_logprob_rows) else None,
            copies_done=self._copies.end_step(must_land=not batch.num_rows),
            ran=ran,
            stuck=batch.sampling_rows[drawn.stuck],
        )

    def _advance(self, batch: StepBatch) -> Drawn:
        slots = batch.slots[batch.future_rows]
        inputs = batch.token_ids.copy()
        inputs[batch.cu_seqlens_q[batch.future_rows]] = self._last_token[slots]
        if self._is_debug:
            if (inputs == CONSUMED).any():
                raise RuntimeError(f"step {batch.step}: a future token was read twice, or before it was there")
            self._last_token[slots] = CONSUMED
        drawn = self._cells.advance(batch, inputs)
        self._last_token[batch.slots[batch.sampling_rows]] = drawn.tokens
        return drawn

    def _logprobs(self, batch: StepBatch, drawn: Drawn) -> Logprobs | None:
        wanted = self._wants_logprobs[batch.slots[batch.sampling_rows]] & ~drawn.stuck
        return certain(batch.sampling_rows[wanted], drawn.tokens[wanted]) if wanted.any() else None

    def _prompt_logprobs(self, batch: StepBatch) -> Logprobs | None:
        row_of: I64 = np.repeat(np.arange(batch.num_rows), batch.counts)
        wanted = np.isin(row_of, batch.prompt_logprob_rows)
        wanted &= (batch.position_ids > 0) & (batch.position_ids < self._num_prompt_tokens[batch.slots[row_of]])
        return certain(row_of[wanted], batch.token_ids[wanted].astype(np.int32)) if wanted.any() else None


def certain(rows: I64, tokens: I32) -> Logprobs:
    """Logprobs of a distribution that knows only one token: the chosen one, rank 1, probability 1."""
    ones = np.ones(len(rows), np.int32).tobytes()
    return Logprobs(
        rows=rows.astype(np.int32).tobytes(),
        counts=ones,
        token_ids=tokens.tobytes(),
        ranks=ones,
        values=columns.pack_floats([0.0] * len(rows)),
    )


def simulated_capacity(settings: ExecutorSettings, name: str = "") -> Capacity:
    """The capacity that the settings ask for, with a card for a model that is not there."""
    cell_bytes = _CELL_BYTES[settings.backend]
    card = ModelCard(
        name=name or settings.backend,
        vocab_size=settings.vocab_size,
        context_length=settings.context_length,
        eos_token_ids=(settings.eos_token_id,),
        backend=settings.backend,
        kv_bytes_per_token=cell_bytes,
    )
    num_blocks = count_blocks(settings, cell_bytes, settings.context_length, free_memory())
    num_host_blocks = count_host_blocks(settings, cell_bytes)
    return Capacity(num_blocks, settings.block_size, settings.max_rows, card, num_host_blocks)


def open_simulated(settings: ExecutorSettings, name: str = "") -> SimulatedBackend:
    """The simulated or the echo backend, as the settings ask."""
    capacity = simulated_capacity(settings, name)
    cells: Cells = EchoCells(capacity) if settings.backend == "echo" else HashCells(capacity)
    return SimulatedBackend(capacity, cells, Timeline(settings))
