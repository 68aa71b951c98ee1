"""The operations of a forward pass (../operations.py) on a device: Triton's kernels, or plain torch.

Attention is any of the implementations of choice.py, one for steps of one token a row and one for the others.
"""

import importlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from services.executor.attention import ReferencePlan
from services.executor.batch import I32
from services.executor.cuda import flash_attention, gather_attention
from services.executor.cuda.choice import Choice
from services.executor.cuda.flash_attention import Attend
from services.executor.cuda.plan import DevicePlan, count_splits, long_rows_of, running_sums, tiles_of
from services.executor.inputs import StepInputs
from services.executor.kv_cache import Pools
from services.executor.linear import Linear
from services.executor.operations import ReferenceOperations
from services.executor.rope import RopeTables

_OPENERS: dict[str, Callable[[], Attend]] = {
    "flash3": flash_attention.open_flash_3,
    "flash2": flash_attention.open_flash_2,
    "varlen": flash_attention.open_varlen,
    "triton": lambda: importlib.import_module("services.executor.cuda.attention_kernels").attend,
    "gather": lambda: gather_attention.attend,
}


class PlainOperations:
    """Everything but attention in plain torch."""

    def __init__(self, choice: Choice, num_processors: int, target: torch.device) -> None:
        self.choice = choice
        self._decode, self._mixed = _OPENERS[choice.decode](), _OPENERS[choice.mixed]()
        self._num_processors = num_processors
        self._target = target
        self._plain = ReferenceOperations()

    def prepare(self, cu_seqlens_q: I32, kv_lens: I32, block_table: I32, block_size: int) -> DevicePlan:
        """For whoever has no staging: each array is copied to the device on its own, and waited for."""
        counts = np.diff(cu_seqlens_q)
        decode_rows = np.flatnonzero(counts == 1).astype(np.int32)

        def on_device(array: I32) -> Tensor:
            return torch.from_numpy(array.copy()).to(self._target)

        return DevicePlan(
            cu_seqlens_q=on_device(cu_seqlens_q),
            cu_seqlens_k=on_device(running_sums(kv_lens)),
            kv_lens=on_device(kv_lens),
            block_table=on_device(block_table),
            decode_rows=on_device(decode_rows),
            tiles=on_device(tiles_of(counts)),
            long_rows=long_rows_of(cu_seqlens_q, kv_lens),
            max_q=int(counts.max(initial=0)),
            max_kv=int(kv_lens.max(initial=0)),
            num_splits=count_splits(len(decode_rows), 1, self._num_processors),
        )

    def attend(self, q: Tensor, pools: Pools[Tensor], plan: DevicePlan, window: int = 0) -> Tensor:
        """q [T, heads, d] -> [T, heads, d]."""
        return (self._decode if plan.max_q == 1 else self._mixed)(q, pools, plan, window)

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """cuBLAS's product."""
        return lambda x: linear(x, weight, bias)

    def normalize(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """[..., n] -> [..., n]."""
        return self._plain.normalize(x, weight, eps)

    def add_normalize(self, hidden: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """[T, hidden] -> twice [T, hidden]."""
        return self._plain.add_normalize(hidden, delta, weight, eps)

    def rotate_and_store(
        self, qkv: Tensor, rope: RopeTables, inputs: StepInputs[Tensor, DevicePlan], pools: Pools[Tensor]
    ) -> Tensor:
        """Returns the queries [T, heads, head_dim]."""
        nothing = ReferencePlan([], [])
        wide = StepInputs(inputs.token_ids, inputs.position_ids, inputs.slot_mapping.long(), nothing)
        return self._plain.rotate_and_store(qkv, rope, wide, pools)

    def gate(self, gate_up: Tensor) -> Tensor:
        """[T, 2 ffn] -> [T, ffn]."""
        return self._plain.gate(gate_up)


class TritonOperations(PlainOperations):
    """Everything but the products in kernels of our own."""

    def __init__(self, choice: Choice, num_processors: int, target: torch.device) -> None:
        super().__init__(choice, num_processors, target)
        self._kernels = importlib.import_module("services.executor.cuda.step_kernels")

    def normalize(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """[..., n] -> [..., n]."""
        normed: Tensor = self._kernels.normalize(x, weight, eps)
        return normed

    def add_normalize(self, hidden: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """[T, hidden] -> twice [T, hidden]."""
        both: tuple[Tensor, Tensor] = self._kernels.add_normalize(hidden, delta, weight, eps)
        return both

    def rotate_and_store(
        self, qkv: Tensor, rope: RopeTables, inputs: StepInputs[Tensor, DevicePlan], pools: Pools[Tensor]
    ) -> Tensor:
        """Returns the queries, a view of qkv."""
        queries: Tensor = self._kernels.rotate_and_store(qkv, rope, inputs.position_ids, inputs.slot_mapping, pools)
        return queries

    def gate(self, gate_up: Tensor) -> Tensor:
        """[T, 2 ffn] -> [T, ffn]."""
        gated: Tensor = self._kernels.gate(gate_up)
        return gated
