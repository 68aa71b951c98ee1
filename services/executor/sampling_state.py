"""What each slot asks of the sampler: one array per parameter, indexed by slot, set when a generation begins.

The arrays lie on the host, so that which rows need which work is known without asking a device. Seam for what is to
come (penalties, bias, allowed ids, bad words, constraints): until the sampler does them, a sampling that asks for one
is refused by name, never ignored.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.executor.backend import Unsupported
from services.executor.batch import I32, I64
from services.executor.draws import MASK_64, U64
from services.executor.slots import read_column
from services.wire.messages import Sampling, SlotInit

F32 = NDArray[np.float32]

NONE_WANTED = -1  # in `logprobs`: no candidates at all, where 0 means the chosen token alone

_NEUTRAL = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The parameters of the sampling rows of one step, one entry a row. outputs: the index of the output drawn."""

    temperature: F32
    top_k: I32
    top_p: F32
    min_p: F32
    seeds: U64
    outputs: I64
    masked: dict[int, I64]  # row -> token ids that may not be drawn; most steps have none


class SamplingState:
    """The columns. Slot 0 asks for nothing."""

    def __init__(self, num_slots: int) -> None:
        self._temperature: F32 = np.zeros(num_slots, np.float32)
        self._top_k: I32 = np.zeros(num_slots, np.int32)
        self._top_p: F32 = np.ones(num_slots, np.float32)
        self._min_p: F32 = np.zeros(num_slots, np.float32)
        self._seeds: U64 = np.zeros(num_slots, np.uint64)
        self._min_tokens: I32 = np.zeros(num_slots, np.int32)
        self._stop_token_ids: dict[int, I64] = {}
        self.num_prompt_tokens: I32 = np.zeros(num_slots, np.int32)
        self.logprobs: I32 = np.full(num_slots, NONE_WANTED, np.int32)
        self.prompt_logprobs: I32 = np.full(num_slots, NONE_WANTED, np.int32)

    def init(self, op: SlotInit) -> None:
        """Take in a slot's parameters; raises Unsupported, naming what cannot be honoured."""
        refused = _unsupported(op.sampling)
        if refused:
            raise Unsupported(f"the sampler does not do {', '.join(refused)}")
        self._set(op.slot, op.sampling)
        self._seeds[op.slot] = op.seed & MASK_64
        self.num_prompt_tokens[op.slot] = op.num_prompt_tokens

    def neutralize(self, slot: int) -> None:
        """From now on the slot is drawn greedily and nothing of it is reported."""
        self._set(slot, _NEUTRAL)

    def rows(self, slots: I32, kv_lens: I32) -> SamplingRows:
        """The parameters of rows that sample; kv_lens tells which output each of them draws."""
        outputs = kv_lens.astype(np.int64) - self.num_prompt_tokens[slots]
        masked = {
            int(row): self._stop_token_ids[int(slots[row])]
            for row in np.flatnonzero(outputs < self._min_tokens[slots])
            if int(slots[row]) in self._stop_token_ids
        }
        return SamplingRows(
            temperature=self._temperature[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            min_p=self._min_p[slots],
            seeds=self._seeds[slots],
            outputs=outputs,
            masked=masked,
        )

    def _set(self, slot: int, sampling: Sampling) -> None:
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = sampling.top_k
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        self._min_tokens[slot] = sampling.min_tokens
        self._stop_token_ids.pop(slot, None)
        if sampling.min_tokens and sampling.stop_token_ids:
            self._stop_token_ids[slot] = read_column(sampling.stop_token_ids).astype(np.int64)
        self.logprobs[slot] = NONE_WANTED if sampling.logprobs is None else sampling.logprobs
        wanted = sampling.prompt_logprobs
        self.prompt_logprobs[slot] = NONE_WANTED if wanted is None else wanted


def _unsupported(sampling: Sampling) -> list[str]:
    asked = {
        "repetition_penalty": sampling.repetition_penalty != 1.0,
        "presence_penalty": sampling.presence_penalty != 0.0,
        "frequency_penalty": sampling.frequency_penalty != 0.0,
        "logit_bias": bool(sampling.bias_token_ids),
        "allowed_token_ids": bool(sampling.allowed_token_ids),
        "bad_words": bool(sampling.bad_words),
        "constraint": sampling.constraint is not None,
    }
    return [name for name, is_asked in asked.items() if is_asked]
