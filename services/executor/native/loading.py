"""From a model's file to a NativeLlama: which rows of which stored tensors make each weight.

Only what the kernels can express is loaded; `unsupported` says what they cannot, before anything is read.
"""

import numpy as np
from numpy.typing import NDArray

from services.executor.config import LlamaConfig
from services.executor.gguf_file import GgufFile
from services.executor.native.binding import Shape
from services.executor.native.model import NativeLayer, NativeLlama, NativeWeights
from services.executor.native.packing import BLOCK, F32, STRIP, PackedWeight, Packer, Rows
from services.executor.weights import (
    LayerParts,
    Part,
    Weight,
    check_tensors,
    embedding_part,
    half_split,
    has_head,
    head_part,
    layer_parts,
    norm_part,
    read,
    read_rope,
)

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
    if block_size % CELLS:
        return f"executor.block_size {block_size} is no multiple of {CELLS}"
    return ""


def load_native(file: GgufFile, config: LlamaConfig, shape: Shape, packer: Packer) -> NativeLlama:
    """The packer's kernels and threads will run it. Raises GgufError as load_llama does."""
    check_tensors(file, config)
    layers = [_load_layer(file, packer, layer_parts(config, index)) for index in range(config.num_layers)]
    embedding = _pack(file, packer, (embedding_part(config),))
    rope = read_rope(file, config)
    weights = NativeWeights(
        layers=layers,
        embedding=embedding,
        norm=_vector(file, (norm_part(config),)),
        head=_pack(file, packer, (head_part(config),)) if has_head(file) else embedding,
        cos=rope.cos.numpy(),
        sin=rope.sin.numpy(),
        eps=config.norm_eps,
    )
    return NativeLlama(packer.kernels, shape, weights, packer.num_threads)


def _load_layer(file: GgufFile, packer: Packer, parts: LayerParts) -> NativeLayer:
    return NativeLayer(
        attention_norm=_vector(file, parts.attention_norm),
        qkv=_pack(file, packer, parts.qkv),
        attention_out=_pack(file, packer, parts.attention_out),
        ffn_norm=_vector(file, parts.ffn_norm),
        gate_up=_pack(file, packer, parts.gate_up, _in_turns(parts.gate_up[0].shape[0])),
        down=_pack(file, packer, parts.down),
    )


def _pack(file: GgufFile, packer: Packer, weight: Weight, order: NDArray[np.int64] | None = None) -> PackedWeight:
    return packer.pack([Rows(file.tensors[part.name], _order(part)) for part in weight], order=order)


def _order(part: Part) -> NDArray[np.int64]:
    rows = np.arange(part.shape[0], dtype=np.int64)[:, None]
    return (half_split(rows, part.interleaved_heads) if part.interleaved_heads else rows)[:, 0]


def _in_turns(size: int) -> NDArray[np.int64]:
    """Rows of two stacked halves, STRIP of the first, then STRIP of the second, and so on."""
    return np.arange(2 * size, dtype=np.int64).reshape(2, -1, STRIP).swapaxes(0, 1).reshape(-1)


def _vector(file: GgufFile, weight: Weight) -> F32:
    values: F32 = read(file, weight).numpy()
    return values
