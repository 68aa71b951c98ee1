"""The values of a checkpoint's tensors as float32: dequantized, stacked, and with rows in the order of half-split
rotation, for which a GGUF file stores those of Q and K interleaved. What goes where is parts.py's affair.
"""

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from services.executor.batch import F32
from services.executor.checkpoint import Checkpoint
from services.executor.parts import ROPE_FACTORS, Part, Weight
from services.executor.rope_angles import Angles, make_angles
from services.executor.stored import StoredTensor

# Rows dequantized at once: what is read and what is written stay in the processor's cache.
_CHUNK_ROWS = 256

Tensors = Mapping[str, StoredTensor]
N = TypeVar("N", np.float32, np.int64)


def read(tensors: Tensors, weight: Weight) -> F32:
    """The parts, stacked; a vector when the parts are vectors."""
    if len(weight[0].shape) == 1:
        return np.concatenate([_vector(tensors[part.name], part) for part in weight])
    stored = [tensors[part.name] for part in weight]
    values, start = np.empty((sum(len(tensor.raw) for tensor in stored), weight[0].shape[-1]), np.float32), 0
    for part, tensor in zip(weight, stored, strict=True):
        stop = start + len(tensor.raw)
        for first in range(0, len(tensor.raw), _CHUNK_ROWS):
            last = min(first + _CHUNK_ROWS, len(tensor.raw))
            values[start + first : start + last] = tensor.floats(first, last)
        if part.interleaved_heads:
            values[start:stop] = half_split(values[start:stop], part.interleaved_heads)
        start = stop
    return values


def read_angles(checkpoint: Checkpoint) -> Angles:
    """Those of every position, by the file's factors when it has some."""
    config, tensors = checkpoint.config, checkpoint.tensors
    factors = read(tensors, (checkpoint.layout.rope_factors(),)) if ROPE_FACTORS in tensors else None
    return make_angles(config.rope_base, config.head_dim, config.context_length, factors, config.rope_scaling)


def half_split(rows: NDArray[N], num_heads: int) -> NDArray[N]:
    """Rows 2j, 2j + 1 of each head -> rows j, j + head_dim / 2. rows: [heads x head_dim, in]."""
    columns = rows.shape[1]
    return rows.reshape(num_heads, -1, 2, columns).swapaxes(1, 2).reshape(-1, columns)


def _vector(tensor: StoredTensor, part: Part) -> F32:
    [values] = tensor.floats(0, 1)
    return half_split(values[:, None], part.interleaved_heads)[:, 0] if part.interleaved_heads else values
