"""The host's mirror of every slot: its generation, where it continues, and its block table.

It is advanced while a plan is decoded, so it runs ahead of the device. Every operation is checked against it; what
does not fit is a PlanError, a bug of the scheduler that fails the step and with it the epoch. Slot 0 and block 0 are
dummies and never named by a plan. Knows nothing of tokens or tensors.
"""

import numpy as np

from services.executor.batch import I32, Mask
from services.executor.capacity import Capacity
from services.wire.messages import AppendBlocks, CopyBlocks, CopyDirection, Op, SlotInit, SlotRetire

NO_GENERATION = -1
ANY_POSITION = -1  # a slot's first row may begin anywhere: cached or copied positions precede it


class PlanError(Exception):
    """A plan breaks the protocol; the text says how."""


class SlotTable:
    """Arrays indexed by slot. `generations` is NO_GENERATION where no sequence lives."""

    def __init__(self, capacity: Capacity) -> None:
        num_slots = capacity.max_rows + 1
        self._capacity = capacity
        self.generations: I32 = np.full(num_slots, NO_GENERATION, np.int32)
        self.next_positions: I32 = np.full(num_slots, ANY_POSITION, np.int32)
        self.has_sampled: Mask = np.zeros(num_slots, np.bool_)
        self.num_blocks: I32 = np.zeros(num_slots, np.int32)
        self.block_tables: I32 = np.zeros((num_slots, capacity.max_blocks_per_slot), np.int32)

    def clear(self) -> None:
        """No slot lives any more."""
        self.generations.fill(NO_GENERATION)

    def apply(self, op: Op) -> None:
        """Take in one operation; raises PlanError when it cannot be meant."""
        match op:
            case SlotInit():
                self._init(op)
            case SlotRetire():
                self._retire(op)
            case AppendBlocks():
                self._append(op)
            case CopyBlocks():
                self._check_copy(op)

    def _init(self, op: SlotInit) -> None:
        if not 0 < op.slot < len(self.generations):
            raise PlanError(f"slot_init: slot {op.slot} is not within 1..{len(self.generations) - 1}")
        if self.generations[op.slot] != NO_GENERATION:
            raise PlanError(f"slot_init: slot {op.slot} still holds generation {self.generations[op.slot]}")
        self.generations[op.slot] = op.generation
        self.next_positions[op.slot] = ANY_POSITION
        self.has_sampled[op.slot] = False
        self.num_blocks[op.slot] = 0

    def _retire(self, op: SlotRetire) -> None:
        is_slot = 0 < op.slot < len(self.generations)
        if not is_slot or self.generations[op.slot] != op.generation:
            held = self.generations[op.slot] if is_slot else "nothing"
            raise PlanError(f"slot_retire: slot {op.slot} holds {held}, not generation {op.generation}")
        self.generations[op.slot] = NO_GENERATION

    def _append(self, op: AppendBlocks) -> None:
        slots, starts, blocks = read_column(op.slots), read_column(op.starts), read_column(op.blocks)
        if not len(slots) == len(starts) == len(blocks):
            raise PlanError("append_blocks: columns of different lengths")
        check_slots(slots, self.generations, "append_blocks")
        _check_blocks(blocks, self._capacity.num_blocks, 1, "append_blocks")
        added = np.bincount(slots, minlength=len(self.num_blocks)).astype(np.int32)
        lengths = self.num_blocks + added
        width = self.block_tables.shape[1]
        if lengths.max() > width:
            raise PlanError(f"append_blocks: slot {lengths.argmax()} would hold more than {width} blocks")
        # Every new index between the old and the new length, each once: exactly a continuation.
        strays = (starts < self.num_blocks[slots]) | (starts >= lengths[slots])
        if strays.any() or len(np.unique(slots.astype(np.int64) * width + starts)) != len(slots):
            raise PlanError(f"append_blocks: starts do not continue the tables of slots {np.unique(slots).tolist()}")
        self.block_tables[slots, starts] = blocks
        self.num_blocks = lengths

    def _check_copy(self, op: CopyBlocks) -> None:
        sources, destinations = read_column(op.sources), read_column(op.destinations)
        if len(sources) != len(destinations):
            raise PlanError(f"copy {op.copy}: columns of different lengths")
        device, host = (self._capacity.num_blocks, 1), (self._capacity.num_host_blocks, 0)
        _check_blocks(sources, *(host if op.direction == CopyDirection.IN else device), f"copy {op.copy}")
        _check_blocks(destinations, *(host if op.direction == CopyDirection.OUT else device), f"copy {op.copy}")


def check_slots(slots: I32, generations: I32, what: str) -> None:
    """Raise PlanError unless every slot is one that lives."""
    outside = (slots < 1) | (slots >= len(generations))
    if outside.any():
        raise PlanError(f"{what}: slot {slots[outside][0]} is not within 1..{len(generations) - 1}")
    unknown = generations[slots] == NO_GENERATION
    if unknown.any():
        raise PlanError(f"{what}: slot {slots[unknown][0]} was not initialised")


def read_column(column: bytes) -> I32:
    """A column as an array that cannot be written; raises PlanError when it is cut."""
    if len(column) % 4:
        raise PlanError(f"a column of {len(column)} bytes holds no whole number of int32")
    return np.frombuffer(column, "<i4")


def _check_blocks(blocks: I32, num_blocks: int, first: int, what: str) -> None:
    outside = (blocks < first) | (blocks >= num_blocks)
    if outside.any():
        raise PlanError(f"{what}: block {blocks[outside][0]} is not within {first}..{num_blocks - 1}")
