"""Smaller types than float32 in plain torch: how far the distributions go from the float32 reference's.

`pytest -m soak -rP` of this file prints the divergence over every context of the golden outputs.
"""

from pathlib import Path

import pytest
import torch

from services.executor.checkpoint import Checkpoint
from services.executor.opening import open_on_cpu
from services.executor.operations import ReferenceOperations
from services.executor.placement import Placement
from services.executor.torch_arrays import TORCH, open_kv, plain_blocks
from services.executor.weights import load_llama
from services.runtime.settings import ExecutorSettings
from tests.unit.executor import tiny_llama
from tests.unit.executor.native.test_model import BLOCK_SIZE, NUM_BLOCKS, Scorer, compare, exact_scorer, golden
from tests.unit.executor.rig import Request, generate, small_capacity

MEAN_KL = 0.01
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def scorer(checkpoint: Checkpoint, dtype: torch.dtype) -> Scorer:
    config = checkpoint.config
    blocks = plain_blocks(BLOCK_SIZE, config.num_kv_heads, config.head_dim, dtype)
    kv = open_kv(small_capacity(config.vocab_size, NUM_BLOCKS), config.num_layers, blocks)
    return Scorer(load_llama(checkpoint, ReferenceOperations(), Placement(dtype=dtype)), kv, TORCH)


def test_distributions_are_those_of_the_reference(default: Checkpoint) -> None:
    cases = sorted(golden(), key=lambda case: len(case["prompt_token_ids"]))[:1]
    assert compare(scorer(default, torch.bfloat16), exact_scorer(default), cases) < MEAN_KL


@pytest.mark.soak
@pytest.mark.parametrize("name", DTYPES)
def test_distributions_over_all_golden_contexts(default: Checkpoint, name: str) -> None:
    divergence = compare(scorer(default, DTYPES[name]), exact_scorer(default), golden())
    print(f"{name}: mean KL {divergence:.5f}")
    assert divergence < MEAN_KL


@pytest.mark.parametrize("name", DTYPES)
def test_everything_is_of_the_type_but_logits(tmp_path: Path, name: str) -> None:
    path = tiny_llama.write(tmp_path / "tiny.gguf", tiny_llama.random_weights())
    settings = ExecutorSettings(precision=name, block_size=4, num_blocks=64, max_rows=8)  # type: ignore[arg-type]
    backend = open_on_cpu(settings, path)
    card, model, kv = backend.capacity.card, backend._model, backend._kv
    assert card.dtype == name and card.kv_bytes_per_token == 2 * 3 * 2 * 16 * 2
    assert {pool.dtype for pools in kv.layers for pool in pools} == {DTYPES[name]}
    assert model.embedding.dtype == DTYPES[name]  # type: ignore[attr-defined]
    assert model.logits(torch.randn(2, tiny_llama.HIDDEN, dtype=DTYPES[name])).dtype == torch.float32
    prompts = [[5, 17, 40, 8], [61, 3], list(range(30))]
    together = generate(backend, [Request(prompt, 6, chunk=7) for prompt in prompts])
    assert all(len(outputs) == 6 for outputs in together)
