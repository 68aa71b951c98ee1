"""What a backend is: weights and KV memory behind five verbs, driven by one thread, in the order of the plans.

The core calls it for operations and rows that were already checked. Whatever it raises out of `run` or an operation
fails that step; after a failure the epoch is over and `begin_epoch` comes next. `init_slot` may refuse a slot with
Unsupported, which fails that slot's rows and nothing else.

A backend whose device works on its own while the host goes on is Overlapping: it launches a step and says later what
became of it, so that the next step is launched while this one runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from services.executor.batch import I32, I64, StepBatch
from services.executor.capacity import Capacity
from services.wire.messages import CopyBlocks, Logprobs, SlotInit


class Unsupported(ValueError):
    """A sampling asks for something that this backend does not do; the text names it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step put out. tokens: one entry for each of batch.sampling_rows, in their order.

    ran: when the device began and ended the step (CLOCK_MONOTONIC nanoseconds), if it knows better than its caller.
    """

    tokens: I32
    poisoned: I64  # indices into the rows of the step: their logits were not finite, their token counts for nothing
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    copies_done: tuple[int, ...] = ()
    ran: tuple[int, int] | None = None
    stuck: I64 = field(default_factory=lambda: NO_ROWS)  # indices into the rows: no token was left that may be drawn
    why_stuck: Mapping[int, str] = field(default_factory=dict)  # of those rows, by index, where more is known


class Backend(Protocol):
    """One way to run steps: torch, simulated or echo."""

    @property
    def capacity(self) -> Capacity:
        """What Ready reports; it never changes."""

    def begin_epoch(self) -> None:
        """Return once every copy has ended. Every slot is forgotten; KV stays."""

    def init_slot(self, op: SlotInit) -> None:
        """A slot begins a generation. Raises Unsupported when its sampling cannot be honoured."""

    def fail_slot(self, slot: int) -> None:
        """The generation in this slot is over for its client: last_token becomes 0, and nothing else is wanted."""

    def copy_blocks(self, op: CopyBlocks) -> None:
        """Start to copy whole blocks; all KV access of later steps sees the copy of a WITHIN."""

    def run(self, batch: StepBatch) -> Outcome:
        """Run one step to its end. A batch without rows waits for a copy when one is outstanding."""


class Pending(Protocol):
    """A step that was launched."""

    def wait(self) -> Outcome:
        """Return once the step is over; raises what `run` may. Called once, in the order of launches, by any thread."""


@runtime_checkable
class Overlapping(Backend, Protocol):
    """A backend that may have several steps in flight. Its verbs are for one thread, save Pending.wait."""

    def launch(self, batch: StepBatch) -> Pending:
        """Begin a step after all that came before; a row whose logits are not finite leaves 0 as its last token."""


@dataclass(frozen=True, slots=True)
class Done:
    """A Pending that waits for nothing."""

    outcome: Outcome

    def wait(self) -> Outcome:
        """What was known all along."""
        return self.outcome


NO_TOKENS: I32 = np.zeros(0, np.int32)
NO_ROWS: I64 = np.zeros(0, np.int64)
