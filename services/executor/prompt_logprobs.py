"""Scoring prompts: how likely the model found each prompt token, chunk by chunk.

The logits of position p - 1 judge the token at p. So a chunk reports every prompt token in it save the very first of
the prompt, and the hidden state of its last position is kept for the first token of the next chunk.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from services.executor.arrays import Arrays
from services.executor.batch import F32, I64, StepBatch
from services.executor.logprobs import Report, report
from services.executor.sampling_state import NONE_WANTED, SamplingState

# Positions whose logits are in memory at once.
_POSITIONS_AT_ONCE = 64


A = TypeVar("A")


class PromptScorer(Generic[A]):
    """Holds the last hidden state of every slot that wants its prompt scored.

    logits: of hidden states, which are arrays of this kind.
    """

    def __init__(self, logits: Callable[[A], F32], arrays: Arrays[A], state: SamplingState) -> None:
        self._logits = logits
        self._arrays = arrays
        self._state = state
        self._last_hidden: dict[int, A] = {}

    def forget(self, slot: int) -> None:
        """Another generation begins in this slot."""
        self._last_hidden.pop(slot, None)

    def score(self, batch: StepBatch, hidden: A) -> list[Report]:
        """The reports of this step's chunks; hidden [T, hidden] is the forward pass's."""
        reports: list[Report] = []
        flagged = frozenset(batch.prompt_logprob_rows.tolist())
        wants = self._state.prompt_logprobs[batch.slots] != NONE_WANTED
        for row in np.flatnonzero(wants & (batch.positions < self._state.num_prompt_tokens[batch.slots])).tolist():
            slot, first, last = int(batch.slots[row]), int(batch.cu_seqlens_q[row]), int(batch.cu_seqlens_q[row + 1])
            if row in flagged:
                own = self._arrays.cut(hidden, first, last)
                reports.extend(self._score_row(batch, row, self._last_hidden.get(slot), own))
            self._last_hidden[slot] = self._arrays.stack([self._arrays.cut(hidden, last - 1, last)])
        return reports

    def _score_row(self, batch: StepBatch, row: int, before: A | None, hidden: A) -> list[Report]:
        """A chunk's tokens, judged by the hidden states before them; without one for the first it goes unjudged."""
        slot, position, first = int(batch.slots[row]), int(batch.positions[row]), int(batch.cu_seqlens_q[row])
        num_tokens = min(int(batch.counts[row]), int(self._state.num_prompt_tokens[slot]) - position)
        tokens = batch.token_ids[first : first + num_tokens]
        judges = self._arrays.cut(hidden, 0, int(batch.counts[row]) - 1)
        if before is not None:
            judges = self._arrays.stack((before, judges))
        else:
            tokens = tokens[1:]
        wanted = np.full(len(tokens), self._state.prompt_logprobs[slot], np.int32)
        names: I64 = np.full(len(tokens), row, np.int64)
        return [
            report(self._logits(self._arrays.cut(judges, at, to)), tokens[at:to], names[at:to], wanted[at:to])
            for at in range(0, len(tokens), _POSITIONS_AT_ONCE)
            for to in [min(at + _POSITIONS_AT_ONCE, len(tokens))]
        ]
