"""Decode steps captured once for each number of rows that they come in, and replayed with other inputs.

A captured step reads its inputs from the front of `arrival`, where the step's one copy lands, and its block tables from
rows of a fixed length; its hidden states and logits go to memory that all buckets share. So no two of them may be under
way out of order, and the one stream sees to that. Captured at start, the largest first, which makes the pool of memory
that the others share large enough for all.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from services.executor.capacity import Capacity
from services.executor.cuda.device import Device, Graph
from services.executor.cuda.layout import Layout
from services.executor.cuda.plan import DevicePlan, count_splits
from services.executor.cuda.staging import forward_fields, table_width

# The forward pass and the logits: (inputs by name, plan, where the logits [rows, vocab] go) -> hidden [rows, hidden].
Captured = Callable[[dict[str, Tensor], DevicePlan, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the memory of captured steps depends on. arrival_bytes: of the largest step's inputs."""

    buckets: tuple[int, ...]
    arrival_bytes: int
    hidden_size: int
    dtype: torch.dtype
    num_kv_heads: int


class DecodeGraphs:
    """One graph for each bucket."""

    def __init__(self, device: Device, capacity: Capacity, sizes: Sizes, forward: Captured) -> None:
        self._device = device
        self._forward = forward
        self._sizes = sizes
        self._max_kv = capacity.card.context_length
        most, target = max(sizes.buckets, default=0), device.target
        with device.working():
            self.arrival = torch.zeros(sizes.arrival_bytes, dtype=torch.uint8, device=target)
            self._table = torch.zeros(most, table_width(capacity.max_blocks_per_slot), dtype=torch.int32, device=target)
            self.hidden = torch.zeros(most, sizes.hidden_size, dtype=sizes.dtype, device=target)
            self.logits = torch.zeros(most, capacity.card.vocab_size, device=target)
            self._counting = torch.arange(most + 1, dtype=torch.int32, device=target)
        self._graphs: dict[int, Graph] = {}

    @property
    def buckets(self) -> tuple[int, ...]:
        """Rising."""
        return self._sizes.buckets

    def capture(self) -> None:
        """Once, before the first step."""
        for bucket in sorted(self.buckets, reverse=True):
            self._graphs[bucket] = self._capture(bucket)

    def replay(self, bucket: int, table: Tensor) -> None:
        """The inputs have arrived. table: [bucket, W], copied to where the captured step reads it."""
        self._table[:bucket, : table.shape[1]].copy_(table)
        self._graphs[bucket].replay()

    def _capture(self, bucket: int) -> Graph:
        inputs = Layout(forward_fields(bucket, bucket)).tensors(self.arrival)
        plan = DevicePlan(
            cu_seqlens_q=self._counting[: bucket + 1],
            cu_seqlens_k=inputs["cu_seqlens_k"],
            kv_lens=inputs["kv_lens"],
            block_table=self._table[:bucket],
            decode_rows=self._counting[:bucket],
            tiles=self._counting[:0].view(0, 2),
            long_rows=(),
            max_q=1,
            max_kv=self._max_kv,
            num_splits=count_splits(bucket, self._sizes.num_kv_heads, self._device.num_processors),
        )
        with self._device.working():
            self.arrival.zero_()
            inputs["kv_lens"].fill_(1)
            inputs["cu_seqlens_k"].copy_(self._counting[: bucket + 1])

        def act() -> None:
            hidden = self._forward(inputs, plan, self.logits[:bucket])
            self.hidden[:bucket].copy_(hidden)

        graph, _ = self._device.capture(act)
        return graph
