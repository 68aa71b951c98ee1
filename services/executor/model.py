"""The Llama forward pass over a ragged packed batch: the new tokens of all rows lie in one dimension, T.

Everything but attention is computed token by token, so rows cannot see one another there. A pure function of weights,
inputs and KV memory; how each operation is computed is an argument. Knows nothing of slots, requests or sampling.
"""

from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from services.executor.config import LlamaConfig
from services.executor.inputs import StepInputs
from services.executor.kv_cache import KvCache
from services.executor.linear import Linear
from services.executor.operations import Operations
from services.executor.rope import RopeTables

P = TypeVar("P")


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

    def forward(self, inputs: StepInputs[P], kv: KvCache, operations: Operations[P]) -> Tensor:
        """Write the KV of the new tokens and return their hidden states [T, hidden], normalized for the head."""
        eps = self.config.norm_eps
        hidden = self.embedding.index_select(0, inputs.token_ids)
        normed = operations.normalize(hidden, self.layers[0].attention_norm, eps)
        next_norms = [*(layer.attention_norm for layer in self.layers[1:]), self.norm]
        for layer, pools, next_norm in zip(self.layers, kv.layers, next_norms, strict=True):
            qkv = layer.qkv(normed).view(len(normed), -1, self.config.head_dim)
            q = operations.rotate_and_store(qkv, self.rope, inputs, pools)
            attended = operations.attend(q, pools, inputs.attention_plan)
            hidden, normed = operations.add_normalize(
                hidden, layer.attention_out(attended.flatten(1)), layer.ffn_norm, eps
            )
            delta = layer.down(operations.gate(layer.gate_up(normed)))
            hidden, normed = operations.add_normalize(hidden, delta, next_norm, eps)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab], float32."""
        return self.head(hidden).float()
