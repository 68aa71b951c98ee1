"""From a model's file to a NativeLlama: which rows of which stored tensors make each weight.

Only what the kernels can express is loaded; `unsupported` says what they cannot, before anything is read.
"""

import numpy as np
from numpy.typing import NDArray

from services.executor.checkpoint import Checkpoint
from services.executor.config import LlamaConfig
from services.executor.native.binding import Shape
from services.executor.native.model import NativeLayer, NativeLlama, NativeWeights
from services.executor.native.packing import BLOCK, F32, STRIP, PackedWeight, Packer, Rows
from services.executor.parts import Part, Weight
from services.executor.reading import half_split, read, read_angles

MAX_HEAD_DIM = 256
MAX_GROUP = 48  # query heads that share a kv head
CELLS = 16  # a block of KV is a whole number of so many positions


def unsupported(config: LlamaConfig, block_size: int) -> str:
    """Why the kernels cannot run this model; empty when they can."""
    sizes = (config.hidden_size, config.ffn_size, config.head_dim)
    if any(size % BLOCK for size in sizes):
        return f"hidden size, ffn size and head size {sizes} are not all multiples of {BLOCK}"
    if config.head_dim > MAX_HEAD_DIM or config.num_heads > MAX_GROUP * config.num_kv_heads:
        return f"heads of {config.head_dim}, {config.num_heads} over {config.num_kv_heads}, are too large"
    if not all(config.turns):
        return "some layers have no rotary embedding"
    if block_size % CELLS:
        return f"executor.block_size {block_size} is no multiple of {CELLS}"
    return ""


def load_native(checkpoint: Checkpoint, shape: Shape, packer: Packer) -> NativeLlama:
    """The packer's kernels and threads will run it."""
    loader, layout, config = _Loader(checkpoint, packer), checkpoint.layout, checkpoint.config
    embedding = loader.packed((layout.embedding(),))
    angles = read_angles(checkpoint)
    weights = NativeWeights(
        layers=[loader.layer(index) for index in range(config.num_layers)],
        embedding=embedding,
        norm=loader.vector((layout.norm(),)),
        head=loader.packed((layout.head(),)) if config.has_head else embedding,
        cos=angles.cos,
        sin=angles.sin,
        eps=config.norm_eps,
    )
    return NativeLlama(packer.kernels, shape, weights, packer.num_threads)


class _Loader:
    """Reads what a part of the model needs."""

    def __init__(self, checkpoint: Checkpoint, packer: Packer) -> None:
        self._checkpoint = checkpoint
        self._packer = packer

    def layer(self, index: int) -> NativeLayer:
        parts = self._checkpoint.layout.layer(index)
        turns = _in_turns(self._checkpoint.config.ffn_size)
        return NativeLayer(
            attention_norm=self.vector(parts.attention_norm),
            qkv=self.packed(parts.qkv, parts.qkv_bias),
            attention_out=self.packed(parts.attention_out, parts.attention_out_bias),
            ffn_norm=self.vector(parts.ffn_norm),
            gate_up=self.packed(parts.gate_up, parts.gate_up_bias, turns),
            down=self.packed(parts.down, parts.down_bias),
            q_norm=self.vector(parts.q_norm) if parts.q_norm else None,
            k_norm=self.vector(parts.k_norm) if parts.k_norm else None,
            window=self._checkpoint.config.window(index),
        )

    def packed(self, weight: Weight, bias: Weight = (), order: NDArray[np.int64] | None = None) -> PackedWeight:
        """order: of the rows of the stacked parts, and of what is added to them."""
        added = self.vector(bias) if bias else None
        if added is not None and order is not None:
            added = np.ascontiguousarray(added[order])
        rows = [Rows(self._checkpoint.tensors[part.name], _order(part)) for part in weight]
        return self._packer.pack(rows, order, added)

    def vector(self, weight: Weight) -> F32:
        return read(self._checkpoint.tensors, weight)


def _order(part: Part) -> NDArray[np.int64]:
    rows = np.arange(part.shape[0], dtype=np.int64)[:, None]
    return (half_split(rows, part.interleaved_heads) if part.interleaved_heads else rows)[:, 0]


def _in_turns(size: int) -> NDArray[np.int64]:
    """Rows of two stacked halves, STRIP of the first, then STRIP of the second, and so on."""
    return np.arange(2 * size, dtype=np.int64).reshape(2, -1, STRIP).swapaxes(0, 1).reshape(-1)
