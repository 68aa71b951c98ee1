"""The Llama forward pass over a ragged packed batch: the new tokens of all rows lie in one dimension, T.

One pass for every family: in what they differ is data of the layers, and nothing here asks which family it is.

Everything but attention is computed token by token, so rows cannot see one another there. A pure function of weights,
inputs and KV memory; how each operation is computed is a part of it. Knows nothing of slots, requests or sampling.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from services.executor.batch import I32
from services.executor.config import LlamaConfig
from services.executor.inputs import StepInputs
from services.executor.kv_cache import KvCache
from services.executor.linear import Linear
from services.executor.operations import Operations
from services.executor.rope import RopeTables

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Layer:
    """qkv: [T, hidden] -> [T, (heads + 2 kv_heads) x head_dim]; gate_up: -> [T, 2 ffn].

    In what families differ: biases are in the linears, q_norm and k_norm are norms of the heads [head_dim] or none,
    window is how many positions a query sees, 0 for all; a layer that turns nothing has tables that turn nothing.
    """

    attention_norm: Tensor
    qkv: Linear
    attention_out: Linear
    ffn_norm: Tensor
    gate_up: Linear
    down: Linear
    rope: RopeTables
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    window: int = 0


@dataclass(frozen=True, slots=True)
class Llama(Generic[P]):
    """The weights, and what computes with them. head: [rows, hidden] -> [rows, vocab]."""

    config: LlamaConfig
    embedding: Tensor  # [vocab, hidden]
    layers: list[Layer]
    norm: Tensor
    head: Linear
    operations: Operations[P]

    def prepare(self, cu_seqlens_q: I32, kv_lens: I32, block_table: I32, block_size: int) -> P:
        """What attention needs to know of a step's rows."""
        return self.operations.prepare(cu_seqlens_q, kv_lens, block_table, block_size)

    def forward(self, inputs: StepInputs[Tensor, P], kv: KvCache[Tensor]) -> Tensor:
        """Write the KV of the new tokens and return their hidden states [T, hidden], normalized for the head."""
        operations, eps = self.operations, self.config.norm_eps
        hidden = self.embedding.index_select(0, inputs.token_ids)
        normed = operations.normalize(hidden, self.layers[0].attention_norm, eps)
        next_norms = [*(layer.attention_norm for layer in self.layers[1:]), self.norm]
        for layer, pools, next_norm in zip(self.layers, kv.layers, next_norms, strict=True):
            qkv = self._normalize_heads(layer.qkv(normed).view(len(normed), -1, self.config.head_dim), layer)
            q = operations.rotate_and_store(qkv, layer.rope, inputs, pools)
            attended = operations.attend(q, pools, inputs.attention_plan, layer.window)
            hidden, normed = operations.add_normalize(
                hidden, layer.attention_out(attended.flatten(1)), layer.ffn_norm, eps
            )
            delta = layer.down(operations.gate(layer.gate_up(normed)))
            hidden, normed = operations.add_normalize(hidden, delta, next_norm, eps)
        return normed

    def _normalize_heads(self, qkv: Tensor, layer: Layer) -> Tensor:
        """qkv: [T, heads + 2 kv_heads, head_dim], changed where the model has norms of the heads."""
        first, last = self.config.num_heads, self.config.num_heads + self.config.num_kv_heads
        if layer.q_norm is not None and layer.k_norm is not None:
            qkv[:, :first] = self.operations.normalize(qkv[:, :first], layer.q_norm, self.config.norm_eps)
            qkv[:, first:last] = self.operations.normalize(qkv[:, first:last], layer.k_norm, self.config.norm_eps)
        return qkv

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> [rows, vocab], float32."""
        return self.head(hidden).float()

    def logits_into(self, hidden: Tensor, out: Tensor) -> None:
        """The same, to memory that was there before; rounded up on the way."""
        out.copy_(self.head(hidden))
