"""Where a model is opened, and that what is captured has room for the largest step."""

from pathlib import Path

import pytest
import torch

from services.executor.checkpoint import open_checkpoint
from services.executor.cuda.device import CpuDevice
from services.executor.cuda.device_operations import PlainOperations
from services.executor.cuda.opening import open_backend, open_operations
from services.executor.model import Llama
from services.executor.placement import Placement
from services.executor.torch_arrays import plain_blocks
from services.executor.torch_start import on_gpu
from services.executor.weights import load_llama
from services.runtime.settings import ExecutorSettings, SettingsError
from tests.unit.executor import tiny_llama
from tests.unit.executor.cuda.rig import capacity_of, oracle
from tests.unit.executor.rig import Request, generate


def test_a_gpu_is_used_where_there_is_one_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_there=is_there: is_there)
        assert on_gpu(ExecutorSettings()) is is_there
        assert not on_gpu(ExecutorSettings(device="cpu"))
    with pytest.raises(SettingsError, match=r"executor\.device: torch sees no GPU"):
        on_gpu(ExecutorSettings(device="cuda"))


def test_a_backend_made_by_settings_generates_what_the_oracle_does(tmp_path: Path) -> None:
    """On a CPU, where the choice falls on plain torch."""
    path = tiny_llama.write(tmp_path / "tiny.gguf", tiny_llama.random_weights(5))
    settings, device, checkpoint = ExecutorSettings(block_size=4, graph_rows=100), CpuDevice(), open_checkpoint(path)
    operations = open_operations(settings, device, torch.float32)
    assert type(operations) is PlainOperations and operations.choice.decode == "gather"
    model: Llama[object] = load_llama(checkpoint, operations, Placement())  # type: ignore[arg-type]
    config = checkpoint.config
    capacity = capacity_of(config.context_length, config.vocab_size)
    blocks = plain_blocks(4, config.num_kv_heads, config.head_dim)
    backend = open_backend(settings, model, capacity, blocks, device)  # type: ignore[arg-type]
    assert backend.graphs.buckets == (1, 2, 4, 8)  # never more rows than a step may have
    prompts = [[token, token + 1, 5] for token in range(1, 8)]
    found, expected = ([Request(prompt, 3) for prompt in prompts] for _ in range(2))
    assert generate(backend, found) == generate(oracle(path), expected)
