"""What each slot asks of the sampler: one array per parameter, indexed by slot, set when a generation begins.

The arrays lie on the host, so that which rows need which work is known without asking a device; the tokens so far,
on which penalties and bad words depend, are the History's. `rows` picks out what the rows of one step ask for; its
`edits` are None while no row has a penalty, a bias or a ban.
"""

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from services.executor.backend import Unsupported
from services.executor.batch import F64, I32, I64, Mask
from services.executor.draws import MASK_64, U64
from services.executor.edits import RowEdits, SlotEdits
from services.executor.history import History
from services.wire.messages import Sampling, SlotInit

NONE_WANTED = -1  # in `logprobs`: no candidates at all, where 0 means the chosen token alone

_NEUTRAL = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The parameters of the sampling rows of one step, one entry a row. outputs: the index of the output drawn."""

    temperature: F64
    top_k: I32
    top_p: F64
    min_p: F64
    seeds: U64
    outputs: I64
    edits: RowEdits | None

    def are_cut(self, vocab_size: int) -> Mask:
        """[rows] which ones draw from a part of the vocabulary alone."""
        is_limited = ((self.top_k > 0) & (self.top_k < vocab_size)) | (self.top_p < 1) | (self.min_p > 0)
        cut: Mask = (self.temperature > 0) & is_limited
        return cut


class SamplingState:
    """The columns, and the history. Slot 0 asks for nothing."""

    def __init__(self, num_slots: int, context_length: int) -> None:
        self._temperature: F64 = np.zeros(num_slots)
        self._top_k: I32 = np.zeros(num_slots, np.int32)
        self._top_p: F64 = np.ones(num_slots)
        self._min_p: F64 = np.zeros(num_slots)
        self._seeds: U64 = np.zeros(num_slots, np.uint64)
        self._edits: dict[int, SlotEdits] = {}  # of the slots whose scores are edited at all
        self.history = History(num_slots, context_length)
        self.num_prompt_tokens: I32 = np.zeros(num_slots, np.int32)
        self.logprobs: I32 = np.full(num_slots, NONE_WANTED, np.int32)
        self.prompt_logprobs: I32 = np.full(num_slots, NONE_WANTED, np.int32)

    def init(self, op: SlotInit) -> None:
        """Take in a slot's parameters; raises Unsupported, naming what cannot be honoured."""
        if op.sampling.constraint is not None:
            raise Unsupported("the sampler does not do constraint")
        # With a constraint its masks tell where a text may end, for what is complete must be able to.
        self._set(op.slot, replace(op.sampling, min_tokens=0) if op.constraint else op.sampling)
        self.history.init(op)
        self._seeds[op.slot] = op.seed & MASK_64
        self.num_prompt_tokens[op.slot] = op.num_prompt_tokens

    def neutralize(self, slot: int) -> None:
        """From now on the slot is drawn greedily and nothing of it is reported."""
        self._set(slot, _NEUTRAL)
        self.history.forget(slot)

    def rows(self, slots: I32, kv_lens: I32) -> SamplingRows:
        """The parameters of rows that sample; kv_lens tells which output each of them draws.

        Raises RuntimeError when the history of a row that needs one does not end where the row does.
        """
        self.history.check(slots, kv_lens)
        outputs = kv_lens.astype(np.int64) - self.num_prompt_tokens[slots]
        return SamplingRows(
            temperature=self._temperature[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            min_p=self._min_p[slots],
            seeds=self._seeds[slots],
            outputs=outputs,
            edits=self._row_edits(slots, outputs) if self._edits else None,
        )

    def _row_edits(self, slots: I32, outputs: I64) -> RowEdits | None:
        edited = [
            (row, edits)
            for row, slot in enumerate(slots.tolist())
            if (edits := self._edits.get(slot)) is not None and edits.is_due(int(outputs[row]))
        ]
        if not edited:
            return None
        rows = np.array([row for row, _ in edited], np.int64)
        return RowEdits(
            rows=rows,
            slots=slots[rows].astype(np.int64),
            outputs=outputs[rows],
            asks=tuple(edits for _, edits in edited),
            history=self.history,
        )

    def _set(self, slot: int, sampling: Sampling) -> None:
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = sampling.top_k
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        edits = SlotEdits.of(sampling)
        if edits is None:
            self._edits.pop(slot, None)
        else:
            self._edits[slot] = edits
        self.logprobs[slot] = NONE_WANTED if sampling.logprobs is None else sampling.logprobs
        wanted = sampling.prompt_logprobs
        self.prompt_logprobs[slot] = NONE_WANTED if wanted is None else wanted
