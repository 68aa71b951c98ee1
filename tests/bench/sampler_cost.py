"""What sampling costs a step: 64 rows over a vocabulary of 49152, by what every row asks for, on one core
and by the operations of the native kernels (plain numpy where there are none).

Milliseconds, medians: from logits to tokens, the parameters of the rows included, with 500 tokens of history where that
counts. Two kinds of scores: `sure` ones, where 0.9 of the mass lies in a few tokens as in running text, and `unsure`
ones, where it takes thousands. `decode_step_ms` is a whole greedy step of 64 rows of the default model at context 200,
on every core; `share_of_step` is what top_k with top_p on every row, on one core, is of it.
"""

import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from services.executor.batch import Rows, pack
from services.executor.native.binding import KernelsError, built_library, open_kernels, open_library
from services.executor.native.scores import NativeScores
from services.executor.opening import open_on_cpu
from services.executor.sampler import sample
from services.executor.sampling_state import SamplingState
from services.executor.scores import PLAIN, ScoreOperations
from services.runtime.models import resolve
from services.runtime.settings import ExecutorSettings, ModelSettings
from services.wire import columns
from services.wire.messages import RowFlag, Sampling, SlotInit

NUM_ROWS = 64
VOCAB = 49152
NUM_KNOWN = 500  # tokens of each row's history
NUM_RUNS = 30
CONTEXT, BLOCK_SIZE, NUM_STEPS = 200, 16, 9

_WORDS = tuple(columns.pack([900 + index, 1000 + index]) for index in range(20))
ASKS: dict[str, Sampling] = {
    "greedy": Sampling(temperature=0.0),
    "temperature": Sampling(temperature=0.8),
    "top_k": Sampling(temperature=0.8, top_k=50),
    "top_k_top_p": Sampling(temperature=0.8, top_k=50, top_p=0.9),
    "top_k_1000_top_p": Sampling(temperature=0.8, top_k=1000, top_p=0.9),
    "top_p": Sampling(temperature=0.8, top_p=0.9),
    "min_p": Sampling(temperature=0.8, min_p=0.05),
    "penalties": Sampling(temperature=0.0, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1),
    "bias_20": Sampling(
        temperature=0.0, bias_token_ids=columns.pack(range(20)), bias_values=columns.pack_floats([1.0] * 20)
    ),
    "bad_words_20": Sampling(temperature=0.0, bad_words=_WORDS),
    "allowed_100": Sampling(temperature=0.0, allowed_token_ids=columns.pack(range(100))),
}


def measure(asks: Sequence[Sampling], logits: Tensor) -> float:
    """Milliseconds for one row of each."""
    rng = np.random.default_rng(0)
    state = SamplingState(len(asks) + 1, 4096)
    for slot, sampling in enumerate(asks, 1):
        known = columns.pack(rng.integers(0, VOCAB, NUM_KNOWN).tolist())
        state.init(SlotInit(slot, slot, sampling, slot, NUM_KNOWN // 2, known))
    slots = np.arange(1, len(asks) + 1, dtype=np.int32)
    kv_lens = np.full(len(asks), NUM_KNOWN, np.int32)
    times: list[float] = []
    operations = score_operations()
    for _ in range(NUM_RUNS):
        own = logits.clone().numpy()
        begun = time.perf_counter()
        sample(own, state.rows(slots, kv_lens), None, operations)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e3


def score_operations() -> ScoreOperations:
    """On one core."""
    try:
        return NativeScores(open_kernels(open_library(built_library())), 1)
    except KernelsError:
        return PLAIN


def scores(tail: float) -> Tensor:
    """[rows, vocab] normal scores with an exponential tail upwards; the longer it is, the surer the model."""
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(NUM_ROWS, VOCAB, generator=generator) * 2
    return logits + torch.empty(NUM_ROWS, VOCAB).exponential_(1.0, generator=generator) * tail


def decode_step_ms() -> float:
    """Milliseconds, median. The KV that is read is what the pool begins with: zeros take as long."""
    blocks_per_row = -(-CONTEXT // BLOCK_SIZE)
    settings = ExecutorSettings(num_blocks=NUM_ROWS * blocks_per_row + 1, block_size=BLOCK_SIZE, max_rows=NUM_ROWS)
    backend = open_on_cpu(settings, resolve(ModelSettings()))
    slots = np.arange(1, NUM_ROWS + 1, dtype=np.int32)
    ones = np.ones(NUM_ROWS, np.int32)
    tables = np.zeros((NUM_ROWS + 1, blocks_per_row), np.int32)
    tables[1:] = 1 + np.arange(NUM_ROWS * blocks_per_row).reshape(NUM_ROWS, -1)
    rows = Rows(slots, slots, ones * np.int32(CONTEXT - 1), ones, ones * np.int32(RowFlag.SAMPLE), host_tokens=slots)
    for slot in slots.tolist():
        backend.init_slot(SlotInit(slot, slot, ASKS["greedy"], slot, CONTEXT))
    times: list[float] = []
    for step in range(NUM_STEPS):
        begun = time.perf_counter()
        backend.run(pack(rows, tables, BLOCK_SIZE, step, received_ns=0))
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e3


def run() -> dict[str, object]:
    """Every row asking for the same, then each for something else, then one row asking among greedy ones."""
    figures = sampler_ms()
    step_ms = decode_step_ms()
    share = max(kind["top_k_top_p"] for kind in figures.values()) / step_ms
    return {**figures, "decode_step_ms": step_ms, "share_of_step": share}


def sampler_ms() -> dict[str, dict[str, float]]:
    """By kind of scores and by what is asked, on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    loads = {name: [asks] * NUM_ROWS for name, asks in ASKS.items()}
    loads["each_something_else"] = [list(ASKS.values())[row % len(ASKS)] for row in range(NUM_ROWS)]
    loads["one_top_k_top_p_among_greedy"] = [ASKS["greedy"]] * (NUM_ROWS - 1) + [ASKS["top_k_top_p"]]
    try:
        return {
            f"{kind}_ms": {name: measure(asks, logits) for name, asks in loads.items()}
            for kind, logits in (("sure", scores(1.5)), ("unsure", scores(1.0)))
        }
    finally:
        torch.set_num_threads(threads)
