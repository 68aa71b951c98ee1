"""The known tokens of the slots whose draws depend on them: prompt and outputs, kept where the sampler works.

A slot's history is set when its generation begins and grows by each token in the very step that samples it, so the
next step, planned before that token was known to anybody else, sees it. Invariant: a row that samples at KV length n
has n tokens here; anything else is a history that is late or lost, and an error.
"""

import numpy as np

from services.executor.batch import F32, I32, I64
from services.executor.slots import read_column
from services.wire.messages import SlotInit

NONE_KEPT = -1


class History:
    """tokens: [slots, context + 1] int32. lengths: [slots] on the host; NONE_KEPT where a draw needs no history."""

    def __init__(self, num_slots: int, context_length: int) -> None:
        # numpy asks the kernel for zeroed memory: slots that keep nothing take none.
        self.tokens: I32 = np.zeros((num_slots, context_length + 1), np.int32)
        self.lengths: I32 = np.full(num_slots, NONE_KEPT, np.int32)
        self._scratch: F32 = np.zeros(0, np.float32)

    def scratch(self, size: int) -> F32:
        """[size] zeros, to be left as zeros; kept, since fresh memory costs more than what is done with it."""
        if len(self._scratch) < size:
            self._scratch = np.zeros(size, np.float32)
        return self._scratch

    def init(self, op: SlotInit) -> None:
        """A generation begins: take in its known tokens if its sampling needs them."""
        if not op.sampling.needs_history:
            self.lengths[op.slot] = NONE_KEPT
            return
        known = read_column(op.known_tokens)
        self.tokens[op.slot, : len(known)] = known
        self.lengths[op.slot] = len(known)

    def forget(self, slot: int) -> None:
        """Nothing more is kept of this slot."""
        self.lengths[slot] = NONE_KEPT

    def check(self, slots: I32, kv_lens: I32) -> None:
        """Raise RuntimeError unless every row about to sample has as many tokens here as it has KV positions."""
        lengths = self.lengths[slots]
        wrong = (lengths != NONE_KEPT) & (lengths != kv_lens)
        if wrong.any():
            row = int(wrong.argmax())
            raise RuntimeError(
                f"slot {slots[row]} samples after {kv_lens[row]} tokens with a history of {lengths[row]}"
            )

    def append(self, slots: I32, sampled: I64) -> None:
        """Each row's sampled token [rows] joins the history of its slot, where one is kept."""
        kept = np.flatnonzero(self.lengths[slots] != NONE_KEPT)
        if len(kept):
            own = slots[kept]
            self.tokens[own, self.lengths[own]] = sampled[kept]
            self.lengths[own] += 1
