"""A Llama whose whole step runs in the native kernels: one call for the forward pass, one for the logits.

It is what the runner needs of a model. The memory it computes in is its own and grows to the largest step seen; logits
are overwritten by the next call. One thread drives it. A row's results are the same bit for bit, however it is batched.
"""

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.executor.batch import I32
from services.executor.inputs import StepInputs
from services.executor.kv_cache import BlockShape, KvCache, Raw
from services.executor.native.binding import Kernels, KvType, Layer, Model, Pools, Shape, Step
from services.executor.native.packing import Arena, Bytes, PackedWeight

F32 = NDArray[np.float32]

_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class NativePlan:
    """Where the rows of a step lie; see attention.py. All of them in one piece."""

    cu_seqlens_q: I32
    kv_lens: I32
    block_table: I32


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """q_norm, k_norm: norms of the heads, where the model has them. window: positions a query sees; 0: all."""

    attention_norm: F32
    qkv: PackedWeight
    attention_out: PackedWeight
    ffn_norm: F32
    gate_up: PackedWeight  # rows of gate and up in turns of packing.STRIP
    down: PackedWeight
    q_norm: F32 | None = None
    k_norm: F32 | None = None
    window: int = 0


@dataclass(frozen=True, slots=True)
class NativeWeights:
    """cos and sin: [positions, head_dim / 2]."""

    layers: list[NativeLayer]
    embedding: PackedWeight
    norm: F32
    head: PackedWeight
    cos: F32
    sin: F32
    eps: float


def kv_blocks(shape: Shape) -> BlockShape:
    """The blocks that the kernels read: src/abi.h."""
    if shape.kv_type == KvType.INT8:
        num_bytes = shape.block_size * (shape.head_dim + _SCALE_BYTES)
        return BlockShape((shape.kv_heads, num_bytes), (shape.kv_heads, num_bytes), "uint8")
    keys = (shape.kv_heads, shape.head_dim, shape.block_size)
    values = (shape.kv_heads, shape.block_size, shape.head_dim)
    return BlockShape(keys, values, "float16" if shape.kv_type == KvType.FLOAT16 else "float32")


class NativeLlama:
    """See the module docstring."""

    def __init__(self, kernels: Kernels, shape: Shape, weights: NativeWeights, num_threads: int) -> None:
        self._kernels = kernels
        self.weights = weights
        self._num_threads = num_threads
        self._model = _model_struct(shape, weights)
        self._pools: tuple[KvCache[Raw], ctypes.Array[Pools]] | None = None
        self._scratch: Bytes = np.zeros(0, np.uint8)
        self._logits: F32 = np.zeros((0, 0), np.float32)

    def prepare(self, cu_seqlens_q: I32, kv_lens: I32, block_table: I32, block_size: int) -> NativePlan:
        """What forward needs to know of the rows."""
        return NativePlan(*(np.ascontiguousarray(array) for array in (cu_seqlens_q, kv_lens, block_table)))

    def forward(self, inputs: StepInputs[Raw, NativePlan], kv: KvCache[Raw]) -> F32:
        """Write the KV of the new tokens and return their hidden states [T, hidden], normalized for the head."""
        num_tokens = len(inputs.token_ids)
        self._grow(num_tokens)
        hidden = np.empty((num_tokens, self._model.hidden), np.float32)
        if self._pools is None or self._pools[0] is not kv:
            self._pools = kv, _pool_structs(kv)
        step = _step_struct(inputs, self._num_threads)
        self._kernels.forward(self._model, step, self._pools[1], self._scratch.ctypes.data, hidden.ctypes.data)
        return hidden

    def logits(self, hidden: F32) -> F32:
        """[rows, hidden] -> [rows, vocab], which are there until the next call."""
        head = self.weights.head.struct
        if len(self._logits) < len(hidden):
            self._logits = np.empty((len(hidden), head.rows), np.float32)
        logits = self._logits[: len(hidden)]
        rows = np.ascontiguousarray(hidden)
        self._kernels.linear(head, rows.ctypes.data, len(rows), logits.ctypes.data, self._num_threads)
        return logits

    def _grow(self, num_tokens: int) -> None:
        needed = self._kernels.forward_bytes(self._model, num_tokens, self._num_threads)
        if needed > len(self._scratch):
            self._scratch = Arena().take(needed)


def _model_struct(shape: Shape, weights: NativeWeights) -> Model:
    layers = (Layer * len(weights.layers))(*(_layer_struct(layer) for layer in weights.layers))
    return Model(
        shape=shape,
        layers=len(weights.layers),
        hidden=weights.embedding.struct.columns,
        ffn=weights.layers[0].down.struct.columns,
        eps=weights.eps,
        cos=weights.cos.ctypes.data,
        sin=weights.sin.ctypes.data,
        norm=weights.norm.ctypes.data,
        embedding=weights.embedding.struct,
        layer=layers,
    )


def _layer_struct(layer: NativeLayer) -> Layer:
    return Layer(
        attention_norm=layer.attention_norm.ctypes.data,
        ffn_norm=layer.ffn_norm.ctypes.data,
        q_norm=None if layer.q_norm is None else layer.q_norm.ctypes.data,
        k_norm=None if layer.k_norm is None else layer.k_norm.ctypes.data,
        qkv=layer.qkv.struct,
        attention_out=layer.attention_out.struct,
        gate_up=layer.gate_up.struct,
        down=layer.down.struct,
        window=layer.window,
    )


def _step_struct(inputs: StepInputs[Raw, NativePlan], num_threads: int) -> Step:
    plan = inputs.attention_plan
    return Step(
        rows=len(plan.kv_lens),
        tokens=len(inputs.token_ids),
        token_ids=inputs.token_ids.ctypes.data,
        positions=inputs.position_ids.ctypes.data,
        slot_mapping=inputs.slot_mapping.ctypes.data,
        cu_seqlens_q=plan.cu_seqlens_q.ctypes.data,
        kv_lens=plan.kv_lens.ctypes.data,
        block_table=plan.block_table.ctypes.data,
        table_stride=plan.block_table.shape[1],
        threads=num_threads,
    )


def _pool_structs(kv: KvCache[Raw]) -> ctypes.Array[Pools]:
    return (Pools * len(kv.layers))(*(Pools(keys.ctypes.data, values.ctypes.data) for keys, values in kv.layers))
