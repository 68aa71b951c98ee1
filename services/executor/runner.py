"""The backend on a CPU: runs one step as one forward pass over the packed batch, samples, and remembers last tokens.

The model is anything with `forward` and `logits`, and computes with arrays of its kind; all else here is numpy. With
is_debug a consumed future token is replaced by -1, and reading it again is an error. One thread drives it; see
backend.py.
"""

from typing import Generic, Protocol, TypeVar

import numpy as np

from services.executor.arrays import Arrays
from services.executor.backend import NO_ROWS, NO_TOKENS, Outcome
from services.executor.batch import F32, I32, I64, Mask, StepBatch
from services.executor.capacity import Capacity
from services.executor.grammars import Grammars
from services.executor.inputs import StepInputs
from services.executor.kv_cache import KvCache
from services.executor.logprobs import Report, join, report
from services.executor.matchers import Matchers
from services.executor.prompt_logprobs import PromptScorer
from services.executor.sampler import Sampled, sample
from services.executor.sampling_state import NONE_WANTED, SamplingState
from services.executor.scores import PLAIN, ScoreOperations
from services.wire.messages import CopyBlocks, CopyDirection, SlotInit

CONSUMED = -1

A = TypeVar("A")
P = TypeVar("P")


class Model(Protocol[A, P]):
    """What the runner needs of a model. A: its arrays (arrays.py); P: what attention works out once a step."""

    def prepare(self, cu_seqlens_q: I32, kv_lens: I32, block_table: I32, block_size: int) -> P:
        """cu_seqlens_q [R + 1], kv_lens [R], block_table [R, W]."""

    def forward(self, inputs: StepInputs[A, P], kv: KvCache[A]) -> A:
        """Write KV, return hidden states [T, hidden]."""

    def logits(self, hidden: A) -> A:
        """[rows, hidden] -> [rows, vocab], float32; they need not outlive the next call."""


class CpuBackend(Generic[A, P]):
    """A Backend of a model and a KV cache."""

    def __init__(
        self, model: Model[A, P], arrays: Arrays[A], capacity: Capacity, kv: KvCache[A], is_debug: bool = False
    ) -> None:
        self._model = model
        self._arrays = arrays
        self._capacity = capacity
        self._kv = kv
        self._is_debug = is_debug
        num_slots = capacity.max_rows + 1
        self._last_token: I64 = np.zeros(num_slots, np.int64)
        self._sampling = SamplingState(num_slots, capacity.card.context_length)
        self._scorer = PromptScorer(self._logits, arrays, self._sampling)
        self._copies_done: list[int] = []
        self._scores: ScoreOperations = PLAIN
        self._matchers = Matchers(Grammars(lambda constraint: None, cache_size=0), capacity.card, num_threads=1)

    def sample_by(self, operations: ScoreOperations) -> None:
        """What the sampler does with whole rows is done by these from now on."""
        self._scores = operations

    def follow(self, matchers: Matchers) -> None:
        """Slots initialised from now on may have a constraint, of these."""
        self._matchers = matchers

    @property
    def capacity(self) -> Capacity:
        """What Ready reports."""
        return self._capacity

    def begin_epoch(self) -> None:
        """Copies are over when they return, so none is outstanding; those not reported are forgotten."""
        self._copies_done.clear()
        self._matchers.clear()

    def init_slot(self, op: SlotInit) -> None:
        """Set the sampling of a slot; raises Unsupported."""
        self._last_token[op.slot] = CONSUMED if self._is_debug else 0
        self._scorer.forget(op.slot)
        self._sampling.init(op)
        self._matchers.begin(op)

    def fail_slot(self, slot: int) -> None:
        """last_token becomes 0, nothing more is reported."""
        self._last_token[slot] = 0
        self._scorer.forget(slot)
        self._sampling.neutralize(slot)
        self._matchers.drop(slot)

    def copy_blocks(self, op: CopyBlocks) -> None:
        """Copy now."""
        self._kv.copy(op)
        if op.direction != CopyDirection.WITHIN:
            self._copies_done.append(op.copy)

    def run(self, batch: StepBatch) -> Outcome:
        """One forward pass, then sampling."""
        copies_done, self._copies_done = tuple(self._copies_done), []
        if not batch.num_rows:
            return Outcome(NO_TOKENS, NO_ROWS, copies_done=copies_done)
        hidden = self._model.forward(self._inputs(batch), self._kv)
        prompt_logprobs = join(self._scorer.score(batch, hidden))
        if not len(batch.sampling_rows):
            return Outcome(NO_TOKENS, NO_ROWS, None, prompt_logprobs, copies_done)
        logits = self._logits(self._arrays.pick(hidden, batch.last_tokens[batch.sampling_rows]))
        is_finite = self._scores.are_finite(logits)
        raw = self._reported(batch, logits)
        sampled = self._sample(batch, logits, is_finite)
        is_good = is_finite & ~sampled.stuck
        stuck = batch.sampling_rows[is_finite & sampled.stuck]
        return Outcome(
            tokens=sampled.tokens.astype(np.int32),
            poisoned=batch.sampling_rows[~is_finite],
            logprobs=join(self._reports(batch, raw, sampled.tokens, is_good)),
            prompt_logprobs=prompt_logprobs,
            copies_done=copies_done,
            stuck=stuck,
            why_stuck={row: self._matchers.why_stuck(int(batch.slots[row])) for row in stuck.tolist()},
        )

    def _inputs(self, batch: StepBatch) -> StepInputs[A, P]:
        """The batch as the model's arrays, future tokens filled in."""
        token_ids = batch.token_ids.copy()
        if len(batch.future_rows):
            slots = batch.slots[batch.future_rows]
            futures = self._last_token[slots]
            if self._is_debug:
                if (futures == CONSUMED).any():
                    raise RuntimeError(f"step {batch.step}: a future token was read twice, or before it was there")
                self._last_token[slots] = CONSUMED
            token_ids[batch.cu_seqlens_q[batch.future_rows]] = futures
        return StepInputs(
            token_ids=self._arrays.of(token_ids),
            position_ids=self._arrays.of(batch.position_ids),
            slot_mapping=self._arrays.of(batch.slot_mapping),
            attention_plan=self._model.prepare(
                batch.cu_seqlens_q, batch.kv_lens, batch.block_tables, self._capacity.block_size
            ),
        )

    def _logits(self, hidden: A) -> F32:
        return self._arrays.floats(self._model.logits(hidden))

    def _sample(self, batch: StepBatch, logits: F32, is_finite: Mask) -> Sampled:
        """The token of each sampling row; the next step reads it as its input. Where not finite it means nothing."""
        if not is_finite.all():
            logits[~is_finite] = 0.0
        slots = batch.slots[batch.sampling_rows]
        rows = self._sampling.rows(slots, batch.kv_lens[batch.sampling_rows])
        # The forward pass is behind us, and the masks were worked out beside it.
        masks = self._matchers.masks(batch)
        sampled = sample(logits, rows, masks, self._scores)
        if masks is not None:
            self._matchers.advance(batch, masks, sampled.tokens, is_finite & ~sampled.stuck)
        self._sampling.history.append(slots, sampled.tokens)
        self._last_token[slots] = sampled.tokens
        return sampled

    def _reported(self, batch: StepBatch, logits: F32) -> F32:
        """The logits of the rows that ask for logprobs, kept from the sampler's edits."""
        wanted = self._sampling.logprobs[batch.slots[batch.sampling_rows]] != NONE_WANTED
        reported: F32 = logits[wanted]
        return reported

    def _reports(self, batch: StepBatch, raw: F32, tokens: I64, is_good: Mask) -> list[Report]:
        """raw: see _reported."""
        wanted = self._sampling.logprobs[batch.slots[batch.sampling_rows]]
        asking = np.flatnonzero(wanted != NONE_WANTED)
        good = np.flatnonzero(is_good[asking])
        if not len(good):
            return []
        chosen = asking[good]
        return [report(raw[good], tokens[chosen], batch.sampling_rows[chosen], wanted[chosen])]
