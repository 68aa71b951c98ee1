"""From a GGUF file to a Llama: every tensor has exactly one place, and every place exactly one tensor.

Names and shapes are all checked before the first value is read: what is missing, unknown or of another shape ends the
start with an error that names it. Values are dequantized to float32 straight into the fused weights. GGUF stores the
rows of Q and K for interleaved rotation; they are put back in order for the half-split rotation of rope.py.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.executor.config import LlamaConfig
from services.executor.gguf_file import GgufFile
from services.executor.linear import Linear, Pack
from services.executor.model import Layer, Llama
from services.executor.operations import Operations
from services.executor.rope import RopeTables, make_tables
from services.model_file import GgufError

# Rows dequantized at once: what is read and what is written stay in the processor's cache.
_CHUNK_ROWS = 256
# Layers read at once; more threads than this wait for one another.
_MAX_READERS = 4

_EMBEDDING, _HEAD, _ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor, a range of rows of a weight. interleaved_heads: heads whose rows must be put in order."""

    name: str
    shape: tuple[int, ...]
    interleaved_heads: int = 0


Weight = tuple[Part, ...]  # stacked along their rows

P = TypeVar("P")
N = TypeVar("N", np.float32, np.int64)


@dataclass(frozen=True, slots=True)
class LayerParts:
    attention_norm: Weight
    qkv: Weight
    attention_out: Weight
    ffn_norm: Weight
    gate_up: Weight
    down: Weight

    def all(self) -> Weight:
        """Every part of the layer."""
        return self.attention_norm + self.qkv + self.attention_out + self.ffn_norm + self.gate_up + self.down


def load_llama(file: GgufFile, config: LlamaConfig, operations: Operations[P]) -> Llama[P]:
    """Raises GgufError when file and config do not fit together to the last tensor."""
    check_tensors(file, config)
    with ThreadPoolExecutor(min(_MAX_READERS, torch.get_num_threads())) as readers:
        ends = readers.submit(_read_ends, file, config, operations.pack)  # the largest tensors go first
        layers = readers.map(partial(_read_layer, file, config, operations.pack), range(config.num_layers))
        embedding, head = ends.result()
        return Llama(
            config=config,
            embedding=embedding,
            layers=list(layers),
            norm=read(file, (norm_part(config),)),
            head=head,
            rope=read_rope(file, config),
            operations=operations,
        )


def read_rope(file: GgufFile, config: LlamaConfig) -> RopeTables:
    """The rotary tables, with the file's factors when it has some."""
    factors = read(file, (_rope_factors(config),)) if _ROPE_FACTORS in file.tensors else None
    return make_tables(config.rope_base, config.head_dim, config.context_length, factors)


def count_parameters(file: GgufFile) -> int:
    """Values of all tensors."""
    return sum(int(np.prod(tensor.shape)) for tensor in file.tensors.values())


def half_split(rows: NDArray[N], num_heads: int) -> NDArray[N]:
    """Rows 2j, 2j + 1 of each head -> rows j, j + head_dim / 2. rows: [heads x head_dim, in]."""
    columns = rows.shape[1]
    return rows.reshape(num_heads, -1, 2, columns).swapaxes(1, 2).reshape(-1, columns)


def _read_ends(file: GgufFile, config: LlamaConfig, pack: Pack) -> tuple[Tensor, Linear]:
    """The embedding and the head, which is the embedding again when the file has no other."""
    embedding = read(file, (embedding_part(config),))
    return embedding, pack(read(file, (head_part(config),)) if has_head(file) else embedding)


def has_head(file: GgufFile) -> bool:
    """Whether the file has a head of its own; if not, the embedding serves as one."""
    return _HEAD in file.tensors


def _read_layer(file: GgufFile, config: LlamaConfig, pack: Pack, index: int) -> Layer:
    parts = layer_parts(config, index)
    return Layer(
        attention_norm=read(file, parts.attention_norm),
        qkv=pack(read(file, parts.qkv)),
        attention_out=pack(read(file, parts.attention_out)),
        ffn_norm=read(file, parts.ffn_norm),
        gate_up=pack(read(file, parts.gate_up)),
        down=pack(read(file, parts.down)),
    )


def read(file: GgufFile, weight: Weight) -> Tensor:
    """The parts as float32, stacked; a vector when the one part is a vector."""
    stored = [file.tensors[part.name] for part in weight]
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
    return values if len(weight[0].shape) > 1 else values[0]


def check_tensors(file: GgufFile, config: LlamaConfig) -> None:
    """Raises GgufError naming tensors that are missing, unknown or of a wrong shape."""
    parts = list(_all_parts(file, config))
    wanted = {part.name for part in parts}
    missing, stray = sorted(wanted - file.tensors.keys()), sorted(file.tensors.keys() - wanted)
    if missing or stray:
        raise GgufError(f"{file.path}: tensors missing: {missing or 'none'}; tensors unknown: {stray or 'none'}")
    for part in parts:
        shape = file.tensors[part.name].shape
        if shape != part.shape:
            raise GgufError(f"{file.path}: tensor {part.name} has shape {shape}, not {part.shape}")


def _all_parts(file: GgufFile, config: LlamaConfig) -> Iterator[Part]:
    yield from (embedding_part(config), norm_part(config))
    if has_head(file):
        yield head_part(config)
    if _ROPE_FACTORS in file.tensors:
        yield _rope_factors(config)
    for index in range(config.num_layers):
        yield from layer_parts(config, index).all()


def embedding_part(config: LlamaConfig) -> Part:
    return Part(_EMBEDDING, (config.vocab_size, config.hidden_size))


def head_part(config: LlamaConfig) -> Part:
    return Part(_HEAD, (config.vocab_size, config.hidden_size))


def norm_part(config: LlamaConfig) -> Part:
    return Part("output_norm.weight", (config.hidden_size,))


def _rope_factors(config: LlamaConfig) -> Part:
    return Part(_ROPE_FACTORS, (config.head_dim // 2,))


def layer_parts(config: LlamaConfig, index: int) -> LayerParts:
    hidden, ffn = config.hidden_size, config.ffn_size
    query_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def part(name: str, *shape: int, heads: int = 0) -> Part:
        return Part(f"blk.{index}.{name}.weight", shape, heads)

    return LayerParts(
        attention_norm=(part("attn_norm", hidden),),
        qkv=(
            part("attn_q", query_rows, hidden, heads=config.num_heads),
            part("attn_k", kv_rows, hidden, heads=config.num_kv_heads),
            part("attn_v", kv_rows, hidden),
        ),
        attention_out=(part("attn_output", hidden, query_rows),),
        ffn_norm=(part("ffn_norm", hidden),),
        gate_up=(part("ffn_gate", ffn, hidden), part("ffn_up", ffn, hidden)),
        down=(part("ffn_down", hidden, ffn),),
    )
