"""KV memory of the backends without a model: arrays of cells, in blocks on the device and on the host.

Copies move whole blocks. Within the device they happen at once; out to the host or in from it they land only after
`copy_lag` further steps, reading and writing at that moment, as late as the protocol allows: a block that is reused
before its copy was reported makes wrong content.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from services.executor.batch import I32, I64, Mask, StepBatch
from services.executor.slots import read_column
from services.wire.messages import CopyBlocks, CopyDirection, SlotInit

Pool = NDArray[np.generic]  # [blocks, ...]


class Drawn(NamedTuple):
    """One entry for each sampling row. stuck: no token may be drawn, and the row's own means nothing."""

    tokens: I32
    stuck: Mask

    @classmethod
    def all(cls, tokens: I32) -> "Drawn":
        """Nobody is stuck."""
        return cls(tokens, np.zeros(len(tokens), np.bool_))


class Cells(Protocol):
    """What stands in for a model: it writes cells, reads them back through block tables, and puts out tokens."""

    @property
    def pools(self) -> tuple[tuple[Pool, Pool], ...]:
        """(device, host) for each array of cells."""

    def init_slot(self, op: SlotInit) -> None:
        """A slot begins a generation."""

    def advance(self, batch: StepBatch, tokens: I64) -> Drawn:
        """Write the cells of tokens [T], then sample one token for each of batch.sampling_rows."""


@dataclass(slots=True)
class _Pending:
    op: CopyBlocks
    steps: int


class Copies:
    """The copies under way, oldest first."""

    def __init__(self, pools: tuple[tuple[Pool, Pool], ...], copy_lag: int) -> None:
        self._pools = pools
        self._lag = copy_lag
        self._pending: deque[_Pending] = deque()

    def order(self, op: CopyBlocks) -> None:
        """Take in a copy; a WITHIN is over on return."""
        if op.direction == CopyDirection.WITHIN:
            self._move(op)
        else:
            self._pending.append(_Pending(op, self._lag))

    def end_step(self, must_land: bool) -> tuple[int, ...]:
        """Land what is due after a step, at least one copy if must_land; the ids of the landed."""
        landed: list[int] = []
        for pending in self._pending:
            pending.steps -= 1
        while self._pending and (self._pending[0].steps < 0 or (must_land and not landed)):
            op = self._pending.popleft().op
            self._move(op)
            landed.append(op.copy)
        return tuple(landed)

    def finish(self) -> None:
        """Land everything."""
        while self._pending:
            self._move(self._pending.popleft().op)

    def _move(self, op: CopyBlocks) -> None:
        sources, destinations = read_column(op.sources), read_column(op.destinations)
        for device, host in self._pools:
            source = host if op.direction == CopyDirection.IN else device
            destination = host if op.direction == CopyDirection.OUT else device
            destination[destinations] = source[sources]


def cell_at(batch: StepBatch, rows: I64, positions: I64, block_size: int) -> I64:
    """The flat index of the cell of `positions`, read through the block tables of `rows`."""
    return batch.block_tables[rows, positions // block_size].astype(np.int64) * block_size + positions % block_size
