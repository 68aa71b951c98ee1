"""The torch backend on a device: a step is put on the stream, and its tokens are waited for by somebody else.

A launch lays the step's inputs into pinned memory, copies them over in one piece, replays the captured decode step or
runs the forward pass, draws on the device, keeps the drawn tokens there for the step after, and has them copied back.
It reads nothing of the device, save for rows whose sampling or scoring is the host's (asks.py, prompt logprobs): those
alone wait for the step. `Flight.wait` sleeps on the event behind the copy. One thread launches; see ../backend.py.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from services.executor.backend import Done, Outcome, Pending
from services.executor.batch import StepBatch
from services.executor.capacity import Capacity
from services.executor.cuda.asks import Asks, asks_of
from services.executor.cuda.buckets import bucket_of
from services.executor.cuda.device import Device
from services.executor.cuda.flight import Flight, Reported, StepSlot
from services.executor.cuda.graphs import DecodeGraphs, Sizes
from services.executor.cuda.gumbel import cut
from services.executor.cuda.host_sampling import HostSampler
from services.executor.cuda.memory import DeviceKv
from services.executor.cuda.plan import DevicePlan, count_splits, long_rows_of
from services.executor.cuda.ring import RING_SIZE, Ring
from services.executor.cuda.staging import Staged, fill, stage
from services.executor.inputs import StepInputs
from services.executor.logprobs import join
from services.executor.matchers import Matchers
from services.executor.prompt_logprobs import PromptScorer
from services.executor.sampling_state import NONE_WANTED, SamplingState
from services.executor.torch_arrays import TORCH
from services.wire.messages import CopyBlocks, CopyDirection, Logprobs, SlotInit

Draw = Callable[[Tensor, Tensor, Tensor, Tensor], None]


# What draws, in arrays of the host and of the device, and what from: [sampling rows, vocab].
Drawing = tuple[Asks, dict[str, Tensor], Tensor]


class DeviceModel(Protocol):
    """What a launch needs of a model."""

    def forward(self, inputs: StepInputs[Tensor, DevicePlan], kv: DeviceKv) -> Tensor:
        """Write KV, return hidden states [T, hidden]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab], float32."""

    def logits_into(self, hidden: Tensor, out: Tensor) -> None:
        """The same, to where it is wanted."""


@dataclass(frozen=True, slots=True)
class Options:
    """sizes: of the captured steps, without buckets for none. draw: gumbel.draw, or its kernel."""

    sizes: Sizes
    draw: Draw


class DeviceBackend:
    """An Overlapping backend of a model on a device."""

    def __init__(self, model: DeviceModel, capacity: Capacity, kv: DeviceKv, device: Device, options: Options) -> None:
        self._model, self._kv, self._device, self._draw = model, kv, device, options.draw
        self.capacity = capacity
        self._num_kv_heads = options.sizes.num_kv_heads
        num_slots = capacity.max_rows + 1
        self._sampling = SamplingState(num_slots, capacity.card.context_length)
        self._scorer = PromptScorer(lambda hidden: TORCH.floats(model.logits(hidden)), TORCH, self._sampling)
        self._host = HostSampler(self._sampling, capacity.card, device)
        self._ring = Ring([StepSlot(device, capacity.max_rows) for _ in range(RING_SIZE)])
        self._copies_done: list[int] = []
        with device.working():
            self._last_token = torch.zeros(num_slots, dtype=torch.int32, device=device.target)
        self.graphs = DecodeGraphs(device, capacity, options.sizes, self._captured)
        with torch.inference_mode():
            self.graphs.capture()

    def follow(self, matchers: Matchers) -> None:
        """Slots initialised from now on may have a constraint, of these."""
        self._host.matchers = matchers

    def begin_epoch(self) -> None:
        """Return once all work is over, copies included; those not reported are forgotten."""
        self._device.synchronize()
        self._copies_done.clear()
        self._host.matchers.clear()

    def init_slot(self, op: SlotInit) -> None:
        """Set the sampling of a slot; raises Unsupported."""
        self._scorer.forget(op.slot)
        self._sampling.init(op)
        self._host.matchers.begin(op)

    def fail_slot(self, slot: int) -> None:
        """last_token becomes 0, nothing more is reported."""
        with self._device.working():
            self._last_token[slot : slot + 1].zero_()
        self._scorer.forget(slot)
        self._sampling.neutralize(slot)
        self._host.matchers.drop(slot)

    def copy_blocks(self, op: CopyBlocks) -> None:
        """Put the copy on the stream; it is over with the next step."""
        with self._device.working():
            self._kv.copy(op)
        if op.direction != CopyDirection.WITHIN:
            self._copies_done.append(op.copy)

    def run(self, batch: StepBatch) -> Outcome:
        """One step to its end."""
        return self.launch(batch).wait()

    @torch.inference_mode()
    def launch(self, batch: StepBatch) -> Pending:
        """See the module docstring."""
        launched_ns = time.monotonic_ns()
        copies_done, self._copies_done = tuple(self._copies_done), []
        if not batch.num_rows and not copies_done:
            return Done(Outcome(np.zeros(0, np.int32), np.zeros(0, np.int64)))
        slot, flight = self._ring.take(), None
        try:
            with self._device.working():
                reported = self._step(batch, slot) if batch.num_rows else Reported()
                slot.done.record()
            flight = Flight(batch, slot, self._ring, reported, (copies_done, launched_ns))
        finally:
            if flight is None:
                self._device.synchronize()  # what was put on the stream may still read the slot
                self._ring.give_back(slot)
        return flight

    def _step(self, batch: StepBatch, slot: StepSlot) -> Reported:
        asks = self._asks(batch)
        bucket = bucket_of(batch, self.graphs.buckets)
        staged = stage(batch, asks, bucket)
        fill(staged.layout.arrays(slot.room(staged.layout.num_bytes)), staged)
        if bucket is None:
            inputs = staged.layout.tensors(
                slot.room(staged.layout.num_bytes).to(self._device.target, non_blocking=True)
            )
            hidden = self._forward(inputs, self._plan(staged, inputs))
        else:
            arrival = self.graphs.arrival[: staged.layout.num_bytes]
            arrival.copy_(slot.room(staged.layout.num_bytes), non_blocking=True)
            inputs = staged.layout.tensors(arrival)
            self.graphs.replay(bucket, inputs["table"])
            hidden = self.graphs.hidden
        prompt_logprobs = join(self._scorer.score(batch, hidden[: batch.num_tokens]))
        if asks is None:
            return Reported(prompt_logprobs=prompt_logprobs)
        logits = self._logits(batch, hidden, inputs, bucket)
        return self._sample(batch, slot, (asks, inputs, logits), prompt_logprobs)

    def _captured(self, inputs: dict[str, Tensor], plan: DevicePlan, logits: Tensor) -> Tensor:
        hidden = self._forward(inputs, plan)
        self._model.logits_into(hidden, logits)
        return hidden

    def _forward(self, inputs: dict[str, Tensor], plan: DevicePlan) -> Tensor:
        """Hidden states [T, hidden]; the inputs that are future tokens are looked up where they were drawn."""
        sources = inputs["sources"]
        futures = self._last_token.index_select(0, sources.clamp(min=0))
        token_ids = torch.where(sources >= 0, futures, inputs["token_ids"])
        return self._model.forward(StepInputs(token_ids, inputs["positions"], inputs["cells"], plan), self._kv)

    def _plan(self, staged: Staged, inputs: dict[str, Tensor]) -> DevicePlan:
        batch = staged.batch
        return DevicePlan(
            cu_seqlens_q=inputs["cu_seqlens_q"],
            cu_seqlens_k=inputs["cu_seqlens_k"],
            kv_lens=inputs["kv_lens"],
            block_table=inputs["table"],
            decode_rows=inputs["decode_rows"],
            tiles=inputs["tiles"],
            long_rows=long_rows_of(batch.cu_seqlens_q, batch.kv_lens),
            max_q=int(batch.counts.max()),
            max_kv=int(batch.kv_lens.max()),
            num_splits=count_splits(len(inputs["decode_rows"]), self._num_kv_heads, self._device.num_processors),
        )

    def _asks(self, batch: StepBatch) -> Asks | None:
        if not len(batch.sampling_rows):
            return None
        slots, kv_lens = batch.slots[batch.sampling_rows], batch.kv_lens[batch.sampling_rows]
        masked = np.searchsorted(batch.sampling_rows, batch.masked_rows)
        return asks_of(self._sampling.rows(slots, kv_lens), masked, self.capacity.card.vocab_size)

    def _logits(self, batch: StepBatch, hidden: Tensor, inputs: dict[str, Tensor], bucket: int | None) -> Tensor:
        """[sampling rows, vocab]"""
        if bucket is None:
            return self._model.logits(hidden.index_select(0, inputs["last"]))
        if len(batch.sampling_rows) == batch.num_rows:
            return self.graphs.logits[: batch.num_rows]
        return self.graphs.logits.index_select(0, inputs["last"])

    def _sample(self, batch: StepBatch, slot: StepSlot, drawing: Drawing, prompt_logprobs: Logprobs | None) -> Reported:
        """Draw, keep the tokens for the next step, and have them copied to the slot."""
        asks, inputs, logits = drawing
        wanted = self._sampling.logprobs[batch.slots[batch.sampling_rows]]
        asking = np.flatnonzero(wanted != NONE_WANTED)
        raw = None
        if len(asking):
            raw = logits.index_select(0, self._device.upload(asking)).to("cpu", non_blocking=True)
        if len(asks.cut_rows):
            cut(logits, inputs["cut_rows"], inputs["limits"])
        out = torch.empty(2, len(logits), dtype=torch.int32, device=logits.device)
        self._draw(logits, inputs["temperatures"], inputs["bits"], out)
        stuck: dict[int, str] = {}
        if len(asks.host_rows):
            own = self._device.upload(asks.host_rows)
            tokens, stuck = self._host.sample(batch, asks.host_rows, logits.index_select(0, own))
            out[0].index_copy_(0, own, self._device.upload(tokens))
        self._last_token.index_copy_(0, inputs["slots"], out[0])
        slot.tokens(len(logits)).copy_(out, non_blocking=True)
        return Reported(prompt_logprobs, raw, asking, wanted[asking], stuck)
