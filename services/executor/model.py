"""The Llama forward pass over a ragged packed batch: the new tokens of all rows lie in one dimension, T.

Everything but attention is computed token by token, so rows cannot see one another there. A pure function of weights,
inputs and KV memory; which implementation attends is an argument. Knows nothing of slots, requests or sampling.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import silu

from services.executor.attention import Attention
from services.executor.config import LlamaConfig
from services.executor.kv_cache import KvCache
from services.executor.linear import Linear
from services.executor.rope import RopeTables, rotate

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class StepInputs(Generic[P]):
    """The tensors of one step; attention_plan is for the attention that prepared it."""

    token_ids: Tensor  # [T]
    position_ids: Tensor  # [T]
    slot_mapping: Tensor  # [T]
    attention_plan: P


@dataclass(frozen=True, slots=True)
class Layer:
    """qkv: [T, hidden] -> [T, (heads + 2 kv_heads) x head_dim]; gate_up: -> [T, 2 ffn]."""

    attention_norm: Tensor
    qkv: Linear
    attention_out: Linear
    ffn_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Llama:
    """The weights. head: [rows, hidden] -> [rows, vocab]."""

    config: LlamaConfig
    embedding: Tensor  # [vocab, hidden]
    layers: list[Layer]
    norm: Tensor
    head: Linear
    rope: RopeTables

    def forward(self, inputs: StepInputs[P], kv: KvCache, attention: Attention[P]) -> Tensor:
        """Write the KV of the new tokens and return their hidden states [T, hidden]."""
        hidden = self.embedding.index_select(0, inputs.token_ids)
        cos = self.rope.cos.index_select(0, inputs.position_ids)[:, None, :]
        sin = self.rope.sin.index_select(0, inputs.position_ids)[:, None, :]
        for index, layer in enumerate(self.layers):
            q, k, v = self._project(layer, hidden, cos, sin)
            kv.write(index, k, v, inputs.slot_mapping)
            attended = attention.attend(q, kv.keys[index], kv.values[index], inputs.attention_plan)
            hidden = hidden + layer.attention_out(attended.flatten(1))
            gate, up = layer.gate_up(self._normalize(hidden, layer.ffn_norm)).chunk(2, dim=-1)
            hidden = hidden + layer.down(silu(gate) * up)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab], float32."""
        return self.head(self._normalize(hidden, self.norm))

    def _project(self, layer: Layer, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [T, heads, head_dim], rotated keys and values [T, kv_heads, head_dim]."""
        config = self.config
        num_turned = config.num_heads + config.num_kv_heads
        qkv = layer.qkv(self._normalize(hidden, layer.attention_norm)).view(len(hidden), -1, config.head_dim)
        turned = rotate(qkv[:, :num_turned], cos, sin)
        return turned[:, : config.num_heads], turned[:, config.num_heads :], qkv[:, num_turned:]

    def _normalize(self, x: Tensor, weight: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config.norm_eps)
        return x * scale * weight
