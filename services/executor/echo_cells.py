"""The echo backend's KV: each cell holds its token, and output token i is prompt token i, cyclic.

Whatever a request asks of the sampler, a ban included, changes nothing of that. The prompt is read back through the
block table, so cached prefixes, copies and preemption need no special care.
"""

import numpy as np

from services.executor.batch import I32, I64, StepBatch
from services.executor.capacity import Capacity
from services.executor.cells import Drawn, Pool, cell_at
from services.wire.messages import SlotInit


class EchoCells:
    """The pool, and the prompt length of each slot."""

    def __init__(self, capacity: Capacity) -> None:
        self._block_size = capacity.block_size
        self._tokens: I32 = np.zeros((capacity.num_blocks, capacity.block_size), np.int32)
        self._host: I32 = np.zeros((capacity.num_host_blocks, capacity.block_size), np.int32)
        self._num_prompt_tokens: I64 = np.ones(capacity.max_rows + 1, np.int64)

    @property
    def pools(self) -> tuple[tuple[Pool, Pool], ...]:
        """(device, host) of the one array of cells."""
        return ((self._tokens, self._host),)

    def init_slot(self, op: SlotInit) -> None:
        """Note where the prompt ends."""
        self._num_prompt_tokens[op.slot] = op.num_prompt_tokens

    def advance(self, batch: StepBatch, tokens: I64) -> Drawn:
        """Write the tokens, then answer each sampling row with its prompt token."""
        self._tokens.reshape(-1)[batch.slot_mapping] = tokens
        rows = batch.sampling_rows
        num_prompt_tokens = self._num_prompt_tokens[batch.slots[rows]]
        index = batch.kv_lens[rows] - num_prompt_tokens
        echoed = cell_at(batch, rows, index % num_prompt_tokens, self._block_size)
        return Drawn.all(self._tokens.reshape(-1)[echoed])
