"""Building the torch backend: file -> weights -> KV pool, in this order, since the pool takes what is left."""

from pathlib import Path

import numpy as np
import structlog
import torch

from services.executor import gguf_file
from services.executor.attention import ReferencePlan
from services.executor.batch import Rows, StepBatch, pack
from services.executor.capacity import Capacity, count_blocks, count_host_blocks, free_memory
from services.executor.config import LlamaConfig, read_config
from services.executor.grammars import Grammars
from services.executor.kv_cache import KvCache
from services.executor.matchers import Matchers
from services.executor.operations import ReferenceOperations
from services.executor.runner import TorchBackend
from services.executor.weights import count_parameters, load_llama
from services.runtime.settings import ExecutorSettings
from services.wire.messages import ModelCard, RowFlag

log = structlog.get_logger()

_FLOAT32_BYTES = 4


def open_torch(
    settings: ExecutorSettings, path: Path, name: str = "", grammars: Grammars | None = None
) -> TorchBackend[ReferencePlan]:
    """Load a model and make room for its KV; raises GgufError or SettingsError. grammars: what slots may follow."""
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    file = gguf_file.read(path)
    config = read_config(file)
    model = load_llama(file, config, ReferenceOperations())
    capacity = _capacity(settings, config, name or config.name, count_parameters(file))
    kv = KvCache(capacity, config.num_layers, config.num_kv_heads, config.head_dim)
    backend = TorchBackend(model, capacity, kv)
    if grammars is not None:
        backend.follow(Matchers(grammars, capacity.card, settings.mask_threads))
    backend.run(_dummy_step(capacity.block_size))  # touches every weight and kernel once, which takes its time
    log.info("model.loaded", path=str(path), num_blocks=capacity.num_blocks, block_size=capacity.block_size)
    return backend


def _dummy_step(block_size: int) -> StepBatch:
    """One token on slot 0 and block 0, which belong to nobody."""
    zero, one = np.zeros(1, np.int32), np.ones(1, np.int32)
    rows = Rows(zero, zero, zero, one, one * np.int32(RowFlag.SAMPLE), host_tokens=zero)
    return pack(rows, np.zeros((1, 1), np.int32), block_size, step=0, received_ns=0)


def _capacity(settings: ExecutorSettings, config: LlamaConfig, name: str, num_parameters: int) -> Capacity:
    bytes_per_token = config.kv_values_per_token * _FLOAT32_BYTES
    num_blocks = count_blocks(settings, bytes_per_token, config.context_length, free_memory())
    card = ModelCard(
        name=name,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        eos_token_ids=config.eos_token_ids,
        backend="torch",
        dtype=settings.dtype,
        num_parameters=num_parameters,
        kv_bytes_per_token=bytes_per_token,
    )
    num_host_blocks = count_host_blocks(settings, bytes_per_token)
    return Capacity(num_blocks, settings.block_size, settings.max_rows, card, num_host_blocks)
