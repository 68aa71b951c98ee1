"""Scoring prompts: how likely the model found each prompt token, chunk by chunk.

The logits of position p - 1 judge the token at p. So a chunk reports every prompt token in it save the very first of
the prompt, and the hidden state of its last position is kept for the first token of the next chunk.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from services.executor.batch import I64, StepBatch
from services.executor.logprobs import Report, report
from services.executor.sampling_state import NONE_WANTED, SamplingState

# Positions whose logits are in memory at once.
_POSITIONS_AT_ONCE = 64


class PromptScorer:
    """Holds the last hidden state of every slot that wants its prompt scored."""

    def __init__(self, logits: Callable[[Tensor], Tensor], state: SamplingState) -> None:
        self._logits = logits
        self._state = state
        self._last_hidden: dict[int, Tensor] = {}

    def forget(self, slot: int) -> None:
        """Another generation begins in this slot."""
        self._last_hidden.pop(slot, None)

    def score(self, batch: StepBatch, hidden: Tensor) -> list[Report]:
        """The reports of this step's chunks; hidden [T, hidden] is the forward pass's."""
        reports: list[Report] = []
        flagged = frozenset(batch.prompt_logprob_rows.tolist())
        wants = self._state.prompt_logprobs[batch.slots] != NONE_WANTED
        for row in np.flatnonzero(wants & (batch.positions < self._state.num_prompt_tokens[batch.slots])).tolist():
            slot, first, last = int(batch.slots[row]), int(batch.cu_seqlens_q[row]), int(batch.cu_seqlens_q[row + 1])
            if row in flagged:
                reports.extend(self._score_row(batch, row, self._last_hidden.get(slot), hidden[first:last]))
            self._last_hidden[slot] = hidden[last - 1 : last].clone()
        return reports

    def _score_row(self, batch: StepBatch, row: int, before: Tensor | None, hidden: Tensor) -> list[Report]:
        """A chunk's tokens, judged by the hidden states before them; without one for the first it goes unjudged."""
        slot, position, first = int(batch.slots[row]), int(batch.positions[row]), int(batch.cu_seqlens_q[row])
        num_tokens = min(int(batch.counts[row]), int(self._state.num_prompt_tokens[slot]) - position)
        tokens = torch.from_numpy(batch.token_ids[first : first + num_tokens])
        judges = hidden[:-1]
        if before is not None:
            judges = torch.cat((before, judges))
        else:
            tokens = tokens[1:]
        judges = judges[: len(tokens)]
        wanted = np.full(len(tokens), self._state.prompt_logprobs[slot], np.int32)
        names: I64 = np.full(len(tokens), row, np.int64)
        return [
            report(self._logits(judges[at:to]), tokens[at:to], names[at:to], wanted[at:to])
            for at in range(0, len(tokens), _POSITIONS_AT_ONCE)
            for to in [at + _POSITIONS_AT_ONCE]
        ]
