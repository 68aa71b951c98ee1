"""How near the native kernels come to what the machine can do: the memory's bandwidth, and oneDNN's products.

`bandwidth` is measured by reading what no cache holds on every core. `decode` is the forward pass and the logits of the
default model, a token a row; its share at one row is the time that reading the weights once must take, of the time the
step took. `attention` is 64 rows with 600 positions each, as its KV in every layer is read once. Shares are medians of
turns, a reading of memory and a step each: on a shared machine bandwidth is another one minute later. `linears`
compares each product of a layer and the head with oneDNN's packed float32 product of the same shape.
"""

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from services.executor import linear
from services.executor.arrays import as_stored
from services.executor.batch import Rows, StepBatch, pack
from services.executor.capacity import Capacity
from services.executor.checkpoint import open_checkpoint
from services.executor.config import LlamaConfig
from services.executor.inputs import StepInputs
from services.executor.kv_cache import KvCache, Raw
from services.executor.native import binding
from services.executor.native.binding import Kernels, KvType, Shape
from services.executor.native.loading import load_native
from services.executor.native.model import NativeLlama, kv_blocks
from services.executor.native.packing import PackedWeight, Packer
from services.runtime.models import resolve
from services.runtime.settings import ModelSettings
from services.wire.messages import ModelCard

BLOCK_SIZE = 16
NUM_RUNS = 15
ROWS = (1, 4, 8, 16, 64, 512)
READ_BYTES = 512 << 20
ATTENTION_ROWS, ATTENTION_CONTEXT = 64, 600


@dataclass(frozen=True)
class Engine:
    """The default model in the kernels, with KV memory for the largest step measured."""

    kernels: Kernels
    config: LlamaConfig
    shape: Shape
    model: NativeLlama
    kv: KvCache[Raw]
    load_s: float


def median_s(act: Callable[[], object], num_runs: int = NUM_RUNS) -> float:
    """Seconds, after two runs that do not count."""
    times = []
    for _ in range(num_runs + 2):
        begun = time.perf_counter()
        act()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[2:])


def timed_s(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


class Memory:
    """What no cache holds."""

    def __init__(self) -> None:
        self._words = torch.ones(READ_BYTES // 8, dtype=torch.int64)

    def bandwidth(self) -> float:
        """GB/s of reading on every core."""
        return round(READ_BYTES / 1e9 / median_s(self._words.sum), 1)

    def share(self, num_bytes: int, act: Callable[[], object]) -> float:
        """The time that reading so many bytes takes, of the time of act, which reads them; the median of turns."""
        act()
        shares = [timed_s(self._words.sum) * num_bytes / READ_BYTES / timed_s(act) for _ in range(NUM_RUNS)]
        return round(statistics.median(shares), 2)


def open_engine(kv_type: KvType = KvType.FLOAT16) -> Engine:
    kernels = binding.open_kernels(binding.open_library(binding.built_library()))
    begun = time.perf_counter()
    checkpoint = open_checkpoint(resolve(ModelSettings()))
    config = checkpoint.config
    shape = Shape(config.num_heads, config.num_kv_heads, config.head_dim, BLOCK_SIZE, kv_type)
    model = load_native(checkpoint, shape, Packer(kernels, torch.get_num_threads()))
    load_s = time.perf_counter() - begun
    num_blocks = 2 + ATTENTION_ROWS * -(-ATTENTION_CONTEXT // BLOCK_SIZE)
    card = ModelCard("model", config.vocab_size, config.context_length, config.eos_token_ids)
    capacity = Capacity(num_blocks, BLOCK_SIZE, ATTENTION_ROWS, card)
    kv = KvCache(capacity, config.num_layers, kv_blocks(shape), as_stored)
    return Engine(kernels, config, shape, model, kv, load_s)


def batch_of(num_rows: int, count: int, context: int) -> StepBatch:
    """Rows of so many new tokens, the last of so many positions; their blocks lie in no order."""
    width = -(-context // BLOCK_SIZE)
    rng = np.random.default_rng(0)
    tables = (rng.permutation(num_rows * width).reshape(num_rows, width) + 1).astype(np.int32)
    slots = np.arange(num_rows, dtype=np.int32)
    ones = np.ones(num_rows, np.int32)
    tokens = rng.integers(300, 40_000, num_rows * count).astype(np.int32)
    rows = Rows(slots, ones, ones * np.int32(context - count), ones * np.int32(count), ones * np.int32(0), tokens)
    return pack(rows, tables, BLOCK_SIZE, step=1, received_ns=0)


def step_of(engine: Engine, num_rows: int, count: int, context: int) -> Callable[[], object]:
    """A forward pass and the logits of each row's last token."""
    batch = batch_of(num_rows, count, context)
    plan = engine.model.prepare(batch.cu_seqlens_q, batch.kv_lens, batch.block_tables, BLOCK_SIZE)
    inputs = StepInputs(batch.token_ids, batch.position_ids, batch.slot_mapping, plan)

    def act() -> None:
        engine.model.logits(engine.model.forward(inputs, engine.kv)[batch.last_tokens])

    return act


def attention_of(engine: Engine) -> Callable[[], object]:
    """Attention in every layer."""
    batch = batch_of(ATTENTION_ROWS, 1, ATTENTION_CONTEXT)
    shape = engine.shape
    qkv = torch.randn(ATTENTION_ROWS, shape.heads + 2 * shape.kv_heads, shape.head_dim)
    out = torch.empty(ATTENTION_ROWS, shape.heads, shape.head_dim)
    table = np.ascontiguousarray(batch.block_tables)
    step = binding.Step(
        rows=ATTENTION_ROWS,
        tokens=ATTENTION_ROWS,
        cu_seqlens_q=batch.cu_seqlens_q.ctypes.data,
        kv_lens=batch.kv_lens.ctypes.data,
        block_table=table.ctypes.data,
        table_stride=table.shape[1],
        threads=torch.get_num_threads(),
    )
    pools = [binding.Pools(keys.ctypes.data, values.ctypes.data) for keys, values in engine.kv.layers]

    def act(_pointed_at: object = (batch, table)) -> None:
        for layer in pools:
            engine.kernels.attend(shape, step, qkv.data_ptr(), layer, 0, out.data_ptr())

    return act


def compare_linear(kernels: Kernels, weight: PackedWeight) -> dict[str, dict[str, float]]:
    """For each number of rows: GMAC/s of the kernel, of oneDNN in float32, and their ratio."""
    size = weight.struct.rows * weight.struct.columns
    ids = torch.arange(weight.struct.rows)
    values = torch.empty(weight.struct.rows, weight.struct.columns)
    kernels.embed(weight.struct, ids.data_ptr(), len(ids), values.data_ptr())
    product, num_threads = linear.pack(values), torch.get_num_threads()
    figures = {}
    for rows in ROWS:
        x, out = torch.randn(rows, weight.struct.columns), torch.empty(rows, weight.struct.rows)

        def act(x: torch.Tensor = x, out: torch.Tensor = out) -> None:
            kernels.linear(weight.struct, x.data_ptr(), len(x), out.data_ptr(), num_threads)

        own, other = median_s(act), median_s(lambda x=x: product(x))  # type: ignore[misc]
        figures[str(rows)] = {
            "gmac_s": round(rows * size / own / 1e9, 1),
            "onednn_gmac_s": round(rows * size / other / 1e9, 1),
            "ratio": round(other / own, 2),
        }
    return figures


@torch.inference_mode()
def run() -> dict[str, object]:
    """All figures; shares and ratios above 1 are possible where a cache helps."""
    engine = open_engine()
    memory = Memory()
    weights = engine.model.weights
    layers = [
        packed for layer in weights.layers for packed in (layer.qkv, layer.attention_out, layer.gate_up, layer.down)
    ]
    weight_bytes = sum(len(packed.memory) for packed in [*layers, weights.head])
    decode = {str(rows): round(median_s(step_of(engine, rows, 1, 200)) * 1e3, 2) for rows in (1, 2, 4, 8, 16, 32, 64)}
    kv_bytes = ATTENTION_ROWS * ATTENTION_CONTEXT * engine.config.num_layers * kv_blocks(engine.shape).num_bytes
    first = weights.layers[0]
    linears = {"qkv": first.qkv, "attention_out": first.attention_out, "gate_up": first.gate_up, "down": first.down}
    return {
        "variant": engine.kernels.name.decode(),
        "threads": torch.get_num_threads(),
        "bandwidth_gb_s": memory.bandwidth(),
        "load_s": round(engine.load_s, 2),
        "decode_ms": decode,
        "decode_share_of_bandwidth": memory.share(weight_bytes, step_of(engine, 1, 1, 200)),
        "attention_share_of_bandwidth": memory.share(kv_bytes // BLOCK_SIZE, attention_of(engine)),
        "prefill_512_tokens_s": round(512 / median_s(step_of(engine, 1, 512, 512))),
        "linears": {
            name: compare_linear(engine.kernels, weight) for name, weight in {**linears, "head": weights.head}.items()
        },
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
