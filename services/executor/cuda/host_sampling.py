"""The rows that the host samples although the forward pass runs on a device: edited and masked ones (asks.py).

Their logits are waited for, so the step after is launched only when they are sampled: that is what a penalty or a
structured output costs on a GPU. The sampler is the CPU's, to the last bit.
"""

import numpy as np
from torch import Tensor

from services.executor.batch import F32, I32, I64, StepBatch
from services.executor.cuda.device import Device
from services.executor.grammars import Grammars
from services.executor.masks import TokenMasks
from services.executor.matchers import Matchers
from services.executor.sampler import sample
from services.executor.sampling_state import SamplingState
from services.executor.torch_scores import TorchScores
from services.wire.messages import ModelCard


class HostSampler:
    """matchers: the constraints of the slots."""

    def __init__(self, state: SamplingState, card: ModelCard, device: Device) -> None:
        self._state = state
        self._read = device.event()
        self._scores = TorchScores()
        self.matchers = Matchers(Grammars(lambda constraint: None, cache_size=0), card, num_threads=1)

    def sample(self, batch: StepBatch, rows: I64, logits: Tensor) -> tuple[I32, dict[int, str]]:
        """rows: [n] which sampling rows; logits: [n, vocab] on the device.

        The tokens of the n, and why by sampling row nothing may follow where that is so. Where a row is not finite its
        token is 0.
        """
        read = logits.to("cpu", non_blocking=True)
        self._read.record()
        self._read.wait()
        scores: F32 = read.numpy()
        is_finite = self._scores.are_finite(scores)
        scores[~is_finite] = 0.0
        own = batch.sampling_rows[rows]
        slots = batch.slots[own]
        masks = self.matchers.masks(batch)
        own_masks = TokenMasks(np.searchsorted(rows, masks.rows), masks.bits) if masks is not None else None
        sampled = sample(scores, self._state.rows(slots, batch.kv_lens[own]), own_masks, self._scores)
        is_drawn = is_finite & ~sampled.stuck
        if masks is not None:
            tokens, drawn = np.zeros(len(batch.sampling_rows), np.int64), np.zeros(len(batch.sampling_rows), np.bool_)
            tokens[rows], drawn[rows] = sampled.tokens, is_drawn
            self.matchers.advance(batch, masks, tokens, drawn)
        self._state.history.append(slots, sampled.tokens)
        tokens_of_rows = np.where(is_drawn, sampled.tokens, 0).astype(np.int32)
        stuck = np.flatnonzero(is_finite & sampled.stuck).tolist()
        return tokens_of_rows, {int(rows[index]): self.matchers.why_stuck(int(slots[index])) for index in stuck}
