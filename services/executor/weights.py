"""From a checkpoint to a Llama: values are dequantized to float32 straight into the fused weights, then placed.

A GGUF file stores the rows of Q and K for interleaved rotation; they are put back in order for the half-split rotation
of rope.py. What goes where is parts.py's affair.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.executor.checkpoint import Checkpoint
from services.executor.linear import Linear
from services.executor.model import Layer, Llama
from services.executor.operations import Operations
from services.executor.parts import ROPE_FACTORS, LayerParts, Part, Weight
from services.executor.placement import Placement
from services.executor.rope import RopeTables, make_tables, still_tables
from services.executor.stored import StoredTensor

# Rows dequantized at once: what is read and what is written stay in the processor's cache.
_CHUNK_ROWS = 256
# Layers read at once; more threads than this wait for one another.
_MAX_READERS = 4

Tensors = Mapping[str, StoredTensor]
P = TypeVar("P")
N = TypeVar("N", np.float32, np.int64)


def load_llama(checkpoint: Checkpoint, operations: Operations[P], placement: Placement | None = None) -> Llama[P]:
    """The model that a checkpoint holds, computed by these operations; placement: float32 on the CPU unless given."""
    place = placement or Placement()
    loader = _Loader(checkpoint, operations, place)
    config = checkpoint.config
    with ThreadPoolExecutor(min(_MAX_READERS, torch.get_num_threads())) as readers:
        ends = readers.submit(loader.ends)  # the largest tensors go first
        layers = readers.map(loader.layer, range(config.num_layers))
        embedding, head = ends.result()
        return Llama(
            config=config,
            embedding=embedding,
            layers=list(layers),
            norm=place.exact(read(checkpoint.tensors, (checkpoint.layout.norm(),))),
            head=head,
            operations=operations,
        )


def read_rope(checkpoint: Checkpoint) -> RopeTables:
    """The rotary tables, with the file's factors when it has some."""
    config, tensors = checkpoint.config, checkpoint.tensors
    factors = read(tensors, (checkpoint.layout.rope_factors(),)) if ROPE_FACTORS in tensors else None
    return make_tables(config.rope_base, config.head_dim, config.context_length, factors, config.rope_scaling)


def half_split(rows: NDArray[N], num_heads: int) -> NDArray[N]:
    """Rows 2j, 2j + 1 of each head -> rows j, j + head_dim / 2. rows: [heads x head_dim, in]."""
    columns = rows.shape[1]
    return rows.reshape(num_heads, -1, 2, columns).swapaxes(1, 2).reshape(-1, columns)


def read(tensors: Tensors, weight: Weight) -> Tensor:
    """The parts as float32, stacked; a vector when the parts are vectors."""
    if len(weight[0].shape) == 1:
        return torch.from_numpy(np.concatenate([_vector(tensors[part.name], part) for part in weight]))
    stored = [tensors[part.name] for part in weight]
    values = torch.empty(sum(len(tensor.raw) for tensor in stored), weight[0].shape[-1])
    array, start = values.numpy(), 0
    for part, tensor in zip(weight, stored, strict=True):
        stop = start + len(tensor.raw)
        for first in range(0, len(tensor.raw), _CHUNK_ROWS):
            last = min(first + _CHUNK_ROWS, len(tensor.raw))
            array[start + first : start + last] = tensor.floats(first, last)
        if part.interleaved_heads:
            array[start:stop] = half_split(array[start:stop], part.interleaved_heads)
        start = stop
    return values


def _vector(tensor: StoredTensor, part: Part) -> NDArray[np.float32]:
    [values] = tensor.floats(0, 1)
    return half_split(values[:, None], part.interleaved_heads)[:, 0] if part.interleaved_heads else values


class _Loader:
    """Reads what a part of the model needs, and puts it in its place."""

    def __init__(self, checkpoint: Checkpoint, operations: Operations[P], placement: Placement) -> None:
        self._tensors, self._layout = checkpoint.tensors, checkpoint.layout
        self._pack = operations.pack
        self._place = placement
        self._config = checkpoint.config
        self._rope = self._placed(read_rope(checkpoint))
        still_positions = 0 if all(self._config.turns) else self._config.context_length
        self._still = self._placed(still_tables(self._config.head_dim, still_positions))

    def ends(self) -> tuple[Tensor, Linear]:
        """The embedding and the head, which is the embedding again when the model has no other."""
        embedding = self._place.matrix(read(self._tensors, (self._layout.embedding(),)))
        head = self._linear((self._layout.head(),)) if self._config.has_head else self._pack(embedding)
        return embedding, head

    def layer(self, index: int) -> Layer:
        parts: LayerParts = self._layout.layer(index)
        return Layer(
            attention_norm=self._norm(parts.attention_norm),
            qkv=self._linear(parts.qkv, parts.qkv_bias),
            attention_out=self._linear(parts.attention_out, parts.attention_out_bias),
            ffn_norm=self._norm(parts.ffn_norm),
            gate_up=self._linear(parts.gate_up, parts.gate_up_bias),
            down=self._linear(parts.down, parts.down_bias),
            rope=self._rope if self._config.turns_at(index) else self._still,
            q_norm=self._norm(parts.q_norm) if parts.q_norm else None,
            k_norm=self._norm(parts.k_norm) if parts.k_norm else None,
            window=self._config.window(index),
        )

    def _norm(self, weight: Weight) -> Tensor:
        return self._place.exact(read(self._tensors, weight))

    def _linear(self, weight: Weight, bias: Weight = ()) -> Linear:
        values = self._place.matrix(read(self._tensors, weight))
        return self._pack(values, self._place.matrix(read(self._tensors, bias)) if bias else None)

    def _placed(self, tables: RopeTables) -> RopeTables:
        return RopeTables(self._place.exact(tables.cos), self._place.exact(tables.sin))
