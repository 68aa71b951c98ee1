"""The arithmetic of a forward pass, as one protocol: a model says what is computed, an implementation says how.

Whatever computes a step (plain torch, compiled kernels, a GPU's) stands behind these few operations; the plain torch
here is the oracle for all of them, and the one that always works. They know tensors and memory, nothing of models: the
sizes are those of their arguments, and whatever a family of models does differently (a bias, a norm of the heads, a
sliding window, scaled rotary tables) is an argument too. Hidden states may be of any floating type; sums are float32.

T new tokens of all rows lie in one dimension. An operation may change the tensors that it is said to give back.
"""

from typing import Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import silu

from services.executor.attention import Attention, ReferenceAttention, ReferencePlan
from services.executor.inputs import StepInputs
from services.executor.kv_cache import Pools
from services.executor.linear import Linear, pack
from services.executor.rope import RopeTables, rotate

P = TypeVar("P")


class Operations(Attention[P], Protocol[P]):
    """One implementation; attention (attention.py) is part of it."""

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """The product x @ weight.T + bias with a weight [out, in], which may be let go of afterwards."""

    def normalize(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) x weight over the last dimension: [T, hidden], or heads [T, heads, head_dim]."""

    def add_normalize(self, hidden: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """hidden + delta, and its norm. hidden may be changed and given back."""

    def rotate_and_store(
        self, qkv: Tensor, rope: RopeTables, inputs: StepInputs[Tensor, P], pools: Pools[Tensor]
    ) -> Tensor:
        """Turn queries and keys by their positions, write keys and values to their cells, return the queries.

        qkv: [T, heads + 2 kv_heads, head_dim], may be changed -> [T, heads, head_dim].
        """

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu of the first half of the last dimension, times the second half: [T, 2 ffn] -> [T, ffn]."""


class ReferenceOperations(ReferenceAttention):
    """See the module docstring."""

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """oneDNN's packed product where there is one."""
        return pack(weight, bias)

    def normalize(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """[..., n] -> [..., n]."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * scale * weight).to(x.dtype)

    def add_normalize(self, hidden: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """[T, hidden] -> twice [T, hidden]."""
        hidden = hidden + delta
        return hidden, self.normalize(hidden, weight, eps)

    def rotate_and_store(
        self, qkv: Tensor, rope: RopeTables, inputs: StepInputs[Tensor, ReferencePlan], pools: Pools[Tensor]
    ) -> Tensor:
        """Returns the queries [T, heads, head_dim]."""
        num_kv_heads = pools.keys.shape[2]
        num_turned = qkv.shape[1] - num_kv_heads
        cos, sin = rope.at(inputs.position_ids)
        turned = rotate(qkv[:, :num_turned], cos, sin)
        cells = inputs.slot_mapping
        pools.keys.flatten(0, 1).index_copy_(0, cells, turned[:, -num_kv_heads:].to(pools.keys.dtype))
        pools.values.flatten(0, 1).index_copy_(0, cells, qkv[:, num_turned:].to(pools.values.dtype))
        return turned[:, :-num_kv_heads]

    def gate(self, gate_up: Tensor) -> Tensor:
        """[T, 2 ffn] -> [T, ffn]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate) * up
