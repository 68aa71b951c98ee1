"""A whole model in the native kernels: close to the float32 reference, the same bit for bit however it is batched."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from torch import Tensor

from services.executor.arrays import NUMPY, Arrays, as_stored
from services.executor.batch import Rows, pack
from services.executor.checkpoint import Checkpoint
from services.executor.inputs import StepInputs
from services.executor.kv_cache import KvCache
from services.executor.native.binding import Kernels, KvType, Shape
from services.executor.native.loading import load_native, unsupported
from services.executor.native.model import kv_blocks
from services.executor.native.packing import Packer
from services.executor.opening import open_on_cpu
from services.executor.operations import ReferenceOperations
from services.executor.runner import Model
from services.executor.torch_arrays import TORCH, open_kv, plain_blocks
from services.executor.weights import load_llama
from services.runtime.settings import ExecutorSettings
from services.wire.messages import Sampling
from tests.unit.executor import tiny_llama
from tests.unit.executor.native.conftest import LIBRARY
from tests.unit.executor.rig import Request, generate, small_capacity

GOLDEN = Path(__file__).parents[3] / "data" / "golden" / "greedy.jsonl"
BLOCK_SIZE = 16
NUM_BLOCKS = 64
MEAN_KL = 0.02
SURE = 1.0  # a margin between the two best logits beyond which no rounding may change which is best
FAST = ExecutorSettings(precision="fast", num_blocks=200, max_rows=16)

needs_kernels = pytest.mark.skipif(LIBRARY is None, reason="no kernels were built")


def golden() -> list[dict[str, Any]]:
    return [json.loads(line) for line in GOLDEN.read_text().splitlines()]


class Scorer:
    """A model and KV memory of its own; gives the logits of every position of one sequence."""

    def __init__(self, model: Model[Any, Any], kv: KvCache[Any], arrays: Arrays[Any]) -> None:
        self._model, self._kv, self._arrays = model, kv, arrays

    def logits(self, token_ids: list[int], first: int, chunk: int = 10_000) -> Tensor:
        """[len(token_ids) - first, vocab], computed chunk by chunk."""
        parts = [self._chunk(token_ids, at, min(chunk, len(token_ids) - at)) for at in range(0, len(token_ids), chunk)]
        hidden = self._arrays.cut(self._arrays.stack(parts), first, len(token_ids))
        return torch.from_numpy(self._arrays.floats(self._model.logits(hidden)).copy())

    def _chunk(self, tokens: list[int], position: int, count: int) -> Any:
        one = np.ones(1, np.int32)
        inputs = np.array(tokens[position : position + count], np.int32)
        rows = Rows(one, one, one * np.int32(position), one * np.int32(count), one * np.int32(0), inputs)
        tables = np.arange(2 * NUM_BLOCKS, dtype=np.int32).reshape(2, -1) % NUM_BLOCKS
        batch = pack(rows, tables, BLOCK_SIZE, step=1, received_ns=0)
        plan = self._model.prepare(batch.cu_seqlens_q, batch.kv_lens, batch.block_tables, BLOCK_SIZE)
        token_ids, positions, cells = map(self._arrays.of, (batch.token_ids, batch.position_ids, batch.slot_mapping))
        return self._model.forward(StepInputs(token_ids, positions, cells, plan), self._kv)


def native_scorer(
    checkpoint: Checkpoint, kernels: Kernels, kv_type: KvType = KvType.FLOAT16, num_threads: int = 1
) -> Scorer:
    config = checkpoint.config
    shape = Shape(config.num_heads, config.num_kv_heads, config.head_dim, BLOCK_SIZE, kv_type)
    capacity = small_capacity(config.vocab_size, NUM_BLOCKS)
    model = load_native(checkpoint, shape, Packer(kernels, num_threads))
    return Scorer(model, KvCache(capacity, config.num_layers, kv_blocks(shape), as_stored), NUMPY)


def exact_scorer(checkpoint: Checkpoint) -> Scorer:
    config = checkpoint.config
    kv = open_kv(
        small_capacity(config.vocab_size, NUM_BLOCKS),
        config.num_layers,
        plain_blocks(BLOCK_SIZE, config.num_kv_heads, config.head_dim),
    )
    return Scorer(load_llama(checkpoint, ReferenceOperations()), kv, TORCH)


def compare(fast: Scorer, exact: Scorer, cases: list[dict[str, Any]]) -> float:
    """The mean divergence over the contexts of the outputs; asserts that sure tokens stay."""
    divergences = []
    for case in cases:
        token_ids = [*case["prompt_token_ids"], *case["output_token_ids"]][:-1]
        first = len(case["prompt_token_ids"]) - 1
        wanted, got = exact.logits(token_ids, first), fast.logits(token_ids, first)
        expected, actual = wanted.double().log_softmax(-1), got.double().log_softmax(-1)
        divergences.append((expected.exp() * (expected - actual)).sum(-1))
        top = wanted.topk(2).values
        is_sure = top[:, 0] - top[:, 1] > SURE
        assert torch.equal(wanted.argmax(-1)[is_sure], got.argmax(-1)[is_sure])
    return float(torch.cat(divergences).mean())


def test_distributions_are_those_of_the_reference(kernels: Kernels, default: Checkpoint) -> None:
    cases = sorted(golden(), key=lambda case: len(case["prompt_token_ids"]))[:4]
    assert compare(native_scorer(default, kernels), exact_scorer(default), cases) < MEAN_KL


@pytest.mark.soak
@pytest.mark.parametrize("kv_type", KvType)
def test_distributions_over_all_golden_contexts(kernels: Kernels, default: Checkpoint, kv_type: KvType) -> None:
    divergence = compare(native_scorer(default, kernels, kv_type), exact_scorer(default), golden())
    print(f"{kernels.name.decode()}, KV {kv_type.name}: mean KL {divergence:.5f}")
    assert divergence < MEAN_KL


@pytest.mark.parametrize("kv_type", KvType)
def test_chunks_change_no_bit(kernels: Kernels, default: Checkpoint, kv_type: KvType) -> None:
    scorer = native_scorer(default, kernels, kv_type)
    token_ids = golden()[0]["prompt_token_ids"][:40]
    whole = scorer.logits(token_ids, 0)
    assert torch.equal(scorer.logits(token_ids, 0, chunk=7), whole)


@pytest.mark.parametrize("num_threads", [2, 3, 9])
def test_threads_change_no_bit(kernels: Kernels, default: Checkpoint, num_threads: int) -> None:
    """More threads than cores: some have none while others finish a phase, and must skip what was done without them."""
    token_ids = golden()[0]["prompt_token_ids"][:12]
    alone = native_scorer(default, kernels).logits(token_ids, 0)
    together = native_scorer(default, kernels, num_threads=num_threads)
    for chunk in (1, 5, 12):
        assert torch.equal(together.logits(token_ids, 0, chunk), alone)


@needs_kernels
def test_company_changes_no_token(default_model: Path) -> None:
    backend = open_on_cpu(FAST, default_model)
    assert backend.capacity.card.dtype == "int8"
    assert backend.capacity.card.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2

    def requests() -> list[Request]:
        return [
            Request(
                case["prompt_token_ids"],
                10,
                Sampling(temperature=0.0 if index % 2 else 0.8, logprobs=0),
                seed=index,
                chunk=(5, 11, 1000)[index % 3],
                starts_at=index,
            )
            for index, case in enumerate(golden()[:6])
        ]

    together, alone = requests(), requests()
    generate(backend, together)
    for request in alone:
        generate(backend, [request])
    assert [request.outputs for request in together] == [request.outputs for request in alone]
    assert [request.logprobs for request in together] == [request.logprobs for request in alone]


def test_a_model_that_the_kernels_cannot_express_runs_in_torch(tmp_path: Path) -> None:
    path = tiny_llama.write(tmp_path / "tiny.gguf", tiny_llama.random_weights())
    with structlog.testing.capture_logs() as logs:
        backend = open_on_cpu(FAST, path)
    assert backend.capacity.card.dtype == "float32"
    [missing] = [entry for entry in logs if entry["event"] == "kernels.missing"]
    assert "head size" in missing["reason"]


def test_a_block_size_that_the_kernels_cannot_read_is_named(default: Checkpoint) -> None:
    assert unsupported(default.config, 24) == "executor.block_size 24 is no multiple of 16"
    assert unsupported(default.config, 32) == ""


@needs_kernels
def test_a_model_that_the_kernels_run_is_opened_and_run_without_torch(default_model: Path) -> None:
    """torch's import takes longer than all else that a start takes."""
    program = (
        "import sys; from pathlib import Path; from services.executor.opening import open_model;"
        "from services.runtime.settings import ExecutorSettings;"
        "open_model(ExecutorSettings(device='cpu', num_blocks=4), Path(sys.argv[1])); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, default_model], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@needs_kernels
def test_torch_and_the_kernels_share_one_pool_of_threads() -> None:
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "gomp" in line}
    assert len(mapped) == 1
