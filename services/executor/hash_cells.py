"""The simulated backend's KV: cells that know what a real cell depends on, so that wrong memory shows as a wrong token.

A real K,V pair depends on its token, its position and every token before it. So does a cell: it stores a chain (the
hash of every (token, position) up to and with its own) and a digest of both its own hash and the chain. A chunk
continues the chain that it reads from the cell before it; a sampled token depends on the sum of all digests read back
through the row's block table. A stale, early, freed or wrongly shared block changes that sum. Sums wrap at 2**64 and
need no order, which is what lets whole steps be computed at once.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from services.executor.batch import F64, I32, I64, StepBatch
from services.executor.capacity import Capacity
from services.executor.cells import Drawn, Pool, cell_at
from services.executor.draws import MASK_64, U64, draw_bits, mix
from services.executor.pretended import PretendedSampler, asks_for_more, first_token
from services.wire.messages import SlotInit

_TOKEN_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_POSITION_FACTOR = np.uint64(0xA0761D6478BD642F)
_OWN_FACTOR = np.uint64(0xE7037ED1A0B428DB)


def simulated_token(tokens: Sequence[int], seed: int, vocab_size: int, eos: tuple[int, int] = (0, 0)) -> int:
    """The token that follows `tokens`, whatever blocks, chunks and steps they went through. eos: see `_choose`."""
    total = _total(tokens)
    return int(_choose(total, np.array([seed & MASK_64], np.uint64), np.array([len(tokens)]), vocab_size, eos)[0])


def simulated_outputs(op: SlotInit, prompt: Sequence[int], count: int, vocab_size: int) -> list[int | None]:
    """What a request gets alone, whatever it asks for; None, after which it ends, where no token may be drawn."""
    if not asks_for_more(op.sampling):
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(simulated_token(tokens, op.seed, vocab_size))
        return [*tokens[len(prompt) :]]
    known = np.array(prompt, np.int32).tobytes() if op.sampling.needs_history else b""
    sampler = PretendedSampler(replace(op, num_prompt_tokens=len(prompt), known_tokens=known), vocab_size)
    outputs: list[int | None] = []
    while len(outputs) < count and None not in outputs:
        tokens = [*prompt, *(token for token in outputs if token is not None)]
        outputs.append(sampler.draw(_total(tokens)[0], len(tokens)))
    return outputs


def simulated_logits(op: SlotInit, tokens: Sequence[int], vocab_size: int) -> tuple[I64, F64]:
    """The ids that have a logit after `tokens`, for a request that asks for more, and their logits."""
    sampler = PretendedSampler(op, vocab_size)
    return sampler.ids, sampler.logits(_total(tokens)[0])


class HashCells:
    """The pools, and the seed of each slot. eos = (token id, one in how many draws it is; 0 = never)."""

    def __init__(self, capacity: Capacity, eos: tuple[int, int] = (0, 0)) -> None:
        shape, host_shape = (
            (num_blocks, capacity.block_size) for num_blocks in (capacity.num_blocks, capacity.num_host_blocks)
        )
        self._vocab_size = capacity.card.vocab_size
        self._block_size = capacity.block_size
        self._eos = eos
        self._chains = np.zeros(shape, np.uint64)
        self._digests = np.zeros(shape, np.uint64)
        # The sum over each whole block, so that a long row is read back block by block.
        self._block_digests = np.zeros(capacity.num_blocks, np.uint64)
        self._host = tuple(np.zeros(size, np.uint64) for size in (host_shape, host_shape, host_shape[0]))
        self._seeds = np.zeros(capacity.max_rows + 1, np.uint64)
        self._samplers: dict[int, PretendedSampler] = {}  # of the slots that ask for more

    @property
    def pools(self) -> tuple[tuple[Pool, Pool], ...]:
        """(device, host) for each array of cells."""
        device = self._chains, self._digests, self._block_digests
        return tuple(zip(device, self._host, strict=True))

    def init_slot(self, op: SlotInit) -> None:
        """Note the seed, and what else is asked for."""
        self._seeds[op.slot] = op.seed & MASK_64
        self._samplers.pop(op.slot, None)
        if asks_for_more(op.sampling):
            self._samplers[op.slot] = PretendedSampler(op, self._vocab_size)

    def advance(self, batch: StepBatch, tokens: I64) -> Drawn:
        """Write chains and digests, then sample from what the sampling rows read back."""
        own = _own_hash(tokens, batch.position_ids)
        chains = np.cumsum(own, dtype=np.uint64)
        first = batch.cu_seqlens_q[:-1]
        # The running sum goes across rows: replace what stands before a row by the chain its sequence has so far.
        shift = self._chain_before(batch) - (chains[first] - own[first])
        chains = chains + np.repeat(shift, batch.counts)
        self._chains.reshape(-1)[batch.slot_mapping] = chains
        self._digests.reshape(-1)[batch.slot_mapping] = _digest(own, chains)
        blocks = batch.slot_mapping // self._block_size
        self._block_digests[blocks] = self._digests[blocks].sum(axis=1, dtype=np.uint64)
        rows = batch.sampling_rows
        totals = self._read_back(batch, rows)
        slots, lengths = batch.slots[rows], batch.kv_lens[rows]
        drawn = Drawn.all(_choose(totals, self._seeds[slots], lengths, self._vocab_size, self._eos))
        for row, slot in enumerate(slots.tolist() if self._samplers else []):
            if slot in self._samplers:
                token = self._samplers[slot].draw(totals[row], int(lengths[row]))
                drawn.tokens[row], drawn.stuck[row] = token or 0, token is None
        return drawn

    def _chain_before(self, batch: StepBatch) -> U64:
        """[R] the chain in the cell before each row's first new token; 0 where there is none."""
        chains = np.zeros(batch.num_rows, np.uint64)
        rows = np.flatnonzero(batch.positions)
        cells = cell_at(batch, rows, batch.positions[rows].astype(np.int64) - 1, self._block_size)
        chains[rows] = self._chains.reshape(-1)[cells]
        return chains

    def _read_back(self, batch: StepBatch, rows: I64) -> U64:
        """[rows] the sum of every digest of each row, the new ones included."""
        num_whole = batch.kv_lens[rows] // self._block_size
        tables = batch.block_tables[rows]
        is_whole = np.arange(tables.shape[1]) < num_whole[:, None]
        whole = np.where(is_whole, self._block_digests[tables], np.uint64(0)).sum(axis=1, dtype=np.uint64)
        last = np.minimum(num_whole, tables.shape[1] - 1)  # where no block is begun, none of its cells is read
        exists = np.arange(self._block_size) < (batch.kv_lens[rows] % self._block_size)[:, None]
        cells = self._digests[tables[np.arange(len(rows)), last]]
        begun: U64 = np.where(exists, cells, np.uint64(0)).sum(axis=1, dtype=np.uint64)
        total: U64 = whole + begun
        return total


def _total(tokens: Sequence[int]) -> U64:
    """[1] the sum of the digests of a sequence's cells."""
    own = _own_hash(np.array(tokens, np.int64), np.arange(len(tokens)))
    total: U64 = _digest(own, np.cumsum(own, dtype=np.uint64)).sum(dtype=np.uint64, keepdims=True)
    return total


def _own_hash(tokens: I64, positions: NDArray[np.integer]) -> U64:
    return mix(tokens.astype(np.uint64) * _TOKEN_FACTOR + positions.astype(np.uint64) * _POSITION_FACTOR + _OWN_FACTOR)


def _digest(own: U64, chains: U64) -> U64:
    return mix(chains + own * _OWN_FACTOR)


def _choose(totals: U64, seeds: U64, lengths: NDArray[np.integer], vocab_size: int, eos: tuple[int, int]) -> I32:
    """A token from the first on, or eos[0] once in eos[1] draws on average."""
    first = first_token(vocab_size)
    bits = draw_bits(totals ^ mix(seeds), lengths)
    tokens = first + (bits % np.uint64(vocab_size - first)).astype(np.int32)
    eos_id, one_in = eos
    if one_in:
        tokens[mix(bits) % np.uint64(one_in) == 0] = eos_id
    return tokens
