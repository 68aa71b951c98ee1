"""A step under way on the device, and what it holds meanwhile: a slot of pinned memory.

`Flight.wait` is for the thread that waits: it sleeps until the step's event has passed, reads the tokens, gives the
slot back, and only then works out what else was asked for. It touches nothing of the thread that launches.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor, int32

from services.executor.backend import Outcome
from services.executor.batch import I32, I64, Mask, StepBatch
from services.executor.cuda.device import Device
from services.executor.cuda.ring import Ring
from services.executor.logprobs import join, report
from services.wire.messages import Logprobs

_TOKEN_BYTES = 4
_LEAST_BYTES = 1 << 16


class StepSlot:
    """Pinned memory for one step's inputs, which grows to the largest seen, and for its tokens.

    done: passed once the device has read the ones and written the others.
    """

    def __init__(self, device: Device, max_rows: int) -> None:
        self._device = device
        self._inputs = device.pinned(_LEAST_BYTES)
        self._tokens = device.pinned(2 * max_rows * _TOKEN_BYTES).view(int32)
        self.done = device.event()

    def room(self, num_bytes: int) -> Tensor:
        """[num_bytes] for the inputs."""
        if len(self._inputs) < num_bytes:
            self._inputs = self._device.pinned(2 * num_bytes)
        return self._inputs[:num_bytes]

    def tokens(self, num_rows: int) -> Tensor:
        """[2, num_rows]: what was drawn, and whether from finite logits."""
        return self._tokens[: 2 * num_rows].view(2, num_rows)


@dataclass(frozen=True, slots=True)
class Reported:
    """What a step's result says beside its tokens.

    raw: [asking, vocab] logits on the host, there with the tokens; asking, wanted: which sampling rows want logprobs,
    and how many. stuck: why, by sampling row, no token was left to draw.
    """

    prompt_logprobs: Logprobs | None = None
    raw: Tensor | None = None
    asking: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    wanted: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    stuck: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flight:
    """A Pending. about: the copies that are over with it, and when it was launched."""

    batch: StepBatch
    slot: StepSlot
    ring: Ring[StepSlot]
    reported: Reported
    about: tuple[tuple[int, ...], int]

    def wait(self) -> Outcome:
        """See the module docstring."""
        self.slot.done.wait()
        done_ns = time.monotonic_ns()
        copies_done, launched_ns = self.about
        sampling_rows = self.batch.sampling_rows
        tokens, is_finite = self.slot.tokens(len(sampling_rows)).numpy().copy()
        self.ring.give_back(self.slot)
        is_good: Mask = is_finite != 0
        stuck = {row: why for row, why in self.reported.stuck.items() if is_good[row]}
        is_drawn = is_good.copy()
        is_drawn[list(stuck)] = False
        return Outcome(
            tokens=tokens,
            poisoned=sampling_rows[~is_good],
            logprobs=self._logprobs(tokens, is_drawn),
            prompt_logprobs=self.reported.prompt_logprobs,
            copies_done=copies_done,
            ran=(launched_ns, done_ns),
            stuck=sampling_rows[sorted(stuck)],
            why_stuck={int(sampling_rows[row]): why for row, why in stuck.items()},
        )

    def _logprobs(self, tokens: I32, is_drawn: Mask) -> Logprobs | None:
        raw, asking = self.reported.raw, self.reported.asking
        if raw is None:
            return None
        good = np.flatnonzero(is_drawn[asking])
        if not len(good):
            return None
        chosen = asking[good]
        own = tokens[chosen].astype(np.int64)
        return join([report(raw.numpy()[good], own, self.batch.sampling_rows[chosen], self.reported.wanted[good])])
