"""From a checkpoint to a Llama: values are dequantized to float32 straight into the fused weights, then placed.

What goes where is parts.py's affair, and what it holds reading.py's.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from services.executor.checkpoint import Checkpoint
from services.executor.linear import Linear
from services.executor.model import Layer, Llama
from services.executor.operations import Operations
from services.executor.parts import LayerParts, Weight
from services.executor.placement import Placement
from services.executor.reading import read, read_angles
from services.executor.rope import RopeTables, still_tables

# Layers read at once; more threads than this wait for one another.
_MAX_READERS = 4

P = TypeVar("P")


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
            norm=place.exact(loader.read((checkpoint.layout.norm(),))),
            head=head,
            operations=operations,
        )


class _Loader:
    """Reads what a part of the model needs, and puts it in its place."""

    def __init__(self, checkpoint: Checkpoint, operations: Operations[P], placement: Placement) -> None:
        self._tensors, self._layout = checkpoint.tensors, checkpoint.layout
        self._pack = operations.pack
        self._place = placement
        self._config = checkpoint.config
        self._rope = self._placed(RopeTables.of(read_angles(checkpoint)))
        still_positions = 0 if all(self._config.turns) else self._config.context_length
        self._still = self._placed(still_tables(self._config.head_dim, still_positions))

    def ends(self) -> tuple[Tensor, Linear]:
        """The embedding and the head, which is the embedding again when the model has no other."""
        embedding = self._place.matrix(self.read((self._layout.embedding(),)))
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

    def read(self, weight: Weight) -> Tensor:
        """See reading.py."""
        return torch.from_numpy(read(self._tensors, weight))

    def _norm(self, weight: Weight) -> Tensor:
        return self._place.exact(self.read(weight))

    def _linear(self, weight: Weight, bias: Weight = ()) -> Linear:
        values = self._place.matrix(self.read(weight))
        return self._pack(values, self._place.matrix(self.read(bias)) if bias else None)

    def _placed(self, tables: RopeTables) -> RopeTables:
        return RopeTables(self._place.exact(tables.cos), self._place.exact(tables.sin))
