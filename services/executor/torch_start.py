"""Building the torch backend: file -> weights -> KV pool, in this order, since the pool takes what is left.

On a GPU it is another backend of the same model; what that is made of is imported only then.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import structlog
import torch

from services.executor.backend import Backend
from services.executor.batch import Rows, StepBatch, pack
from services.executor.capacity import Capacity, count_blocks, count_host_blocks, free_memory
from services.executor.checkpoint import Checkpoint, open_checkpoint
from services.executor.grammars import Grammars
from services.executor.kv_cache import BlockShape, KvCache, plain_blocks
from services.executor.matchers import Matchers
from services.executor.native.binding import Shape
from services.executor.native.choice import choose_kernels, kv_type
from services.executor.native.loading import load_native
from services.executor.native.model import kv_blocks
from services.executor.native.packing import Packer
from services.executor.native.scores import NativeScores
from services.executor.operations import ReferenceOperations
from services.executor.placement import Placement
from services.executor.runner import Model, TorchBackend
from services.executor.scores import PLAIN, ScoreOperations
from services.executor.weights import load_llama
from services.runtime.settings import ExecutorSettings, SettingsError
from services.wire.messages import ModelCard, RowFlag

log = structlog.get_logger()

# What plain torch computes in; where the native kernels are missing, "fast" is float32 too.
_DTYPES = {"exact": torch.float32, "fast": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, the blocks of its KV memory, what it computes in, and what its sampler computes with."""

    model: Model[Any]
    blocks: BlockShape
    computes_in: str
    scores: ScoreOperations


class Following(Backend, Protocol):
    """A backend whose slots may have constraints."""

    def follow(self, matchers: Matchers) -> None:
        """Of these, from now on."""


def open_model(settings: ExecutorSettings, path: Path, name: str = "", grammars: Grammars | None = None) -> Backend:
    """Load a model and make room for its KV where the settings say; raises ModelFileError, SettingsError.

    grammars: what slots may follow.
    """
    return (_open_on_gpu if on_gpu(settings) else open_torch)(settings, path, name, grammars)


def open_torch(
    settings: ExecutorSettings, path: Path, name: str = "", grammars: Grammars | None = None
) -> TorchBackend[Any]:
    """The same on a CPU."""
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    checkpoint = open_checkpoint(path)
    loaded = _load(settings, checkpoint)
    capacity = _capacity(settings, _card(settings, checkpoint, loaded, name), free_memory())
    backend = TorchBackend(loaded.model, capacity, KvCache(capacity, checkpoint.config.num_layers, loaded.blocks))
    backend.sample_by(loaded.scores)
    _make_ready(settings, backend, grammars)
    log.info("model.loaded", path=str(path), computes_in=loaded.computes_in, num_blocks=capacity.num_blocks)
    return backend


def _open_on_gpu(settings: ExecutorSettings, path: Path, name: str, grammars: Grammars | None) -> Backend:
    from services.executor.cuda.gpu import CudaDevice  # noqa: PLC0415
    from services.executor.cuda.opening import DTYPES, open_backend, open_operations  # noqa: PLC0415

    device, dtype = CudaDevice(), DTYPES[settings.precision]
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    model = load_llama(checkpoint, open_operations(settings, device, dtype), Placement(device.target, dtype))
    blocks = plain_blocks(settings.block_size, config.num_kv_heads, config.head_dim, dtype)
    loaded = Loaded(model, blocks, str(dtype).removeprefix("torch."), PLAIN)
    capacity = _capacity(settings, _card(settings, checkpoint, loaded, name), device.free_bytes())
    backend = open_backend(settings, model, capacity, blocks, device)
    _make_ready(settings, backend, grammars)
    log.info("model.loaded", path=str(path), computes_in=loaded.computes_in, num_blocks=capacity.num_blocks)
    return backend


def _make_ready(settings: ExecutorSettings, backend: Following, grammars: Grammars | None) -> None:
    if grammars is not None:
        backend.follow(Matchers(grammars, backend.capacity.card, settings.mask_threads))
    for num_tokens in (1, 2):  # touches every weight and kernel once, which takes its time
        backend.run(_dummy_step(backend.capacity.block_size, num_tokens))


def on_gpu(settings: ExecutorSettings) -> bool:
    """Whether steps are computed there; raises SettingsError where a GPU is asked for and none is seen."""
    is_seen = settings.device != "cpu" and torch.cuda.is_available()
    if settings.device == "cuda" and not is_seen:
        raise SettingsError("executor.device: torch sees no GPU of CUDA")
    return is_seen


def _load(settings: ExecutorSettings, checkpoint: Checkpoint) -> Loaded:
    config = checkpoint.config
    kernels = choose_kernels(settings, config)
    if kernels is None:
        dtype = _DTYPES[settings.precision]
        blocks = plain_blocks(settings.block_size, config.num_kv_heads, config.head_dim, dtype)
        model = load_llama(checkpoint, ReferenceOperations(), Placement(dtype=dtype))
        return Loaded(model, blocks, str(dtype).removeprefix("torch."), PLAIN)
    shape = Shape(config.num_heads, config.num_kv_heads, config.head_dim, settings.block_size, kv_type(settings))
    native = load_native(checkpoint, shape, Packer(kernels, torch.get_num_threads()))
    scores = NativeScores(kernels, torch.get_num_threads())
    return Loaded(native, kv_blocks(shape), f"int8 {kernels.name.decode()}", scores)


def _dummy_step(block_size: int, num_tokens: int) -> StepBatch:
    """Tokens on slot 0 and block 0, which belong to nobody: one is decoded, several are a prompt."""
    num_tokens = min(num_tokens, block_size)
    zero, one = np.zeros(1, np.int32), np.ones(1, np.int32)
    flags, tokens = one * np.int32(RowFlag.SAMPLE), np.zeros(num_tokens, np.int32)
    rows = Rows(zero, zero, zero, one * np.int32(num_tokens), flags, tokens)
    return pack(rows, np.zeros((1, 1), np.int32), block_size, step=0, received_ns=0)


def _card(settings: ExecutorSettings, checkpoint: Checkpoint, loaded: Loaded, name: str) -> ModelCard:
    config = checkpoint.config
    return ModelCard(
        name=name or config.name,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        eos_token_ids=config.eos_token_ids,
        backend="torch",
        dtype=loaded.computes_in.split()[0],
        num_parameters=checkpoint.num_parameters,
        kv_bytes_per_token=config.num_layers * loaded.blocks.num_bytes // settings.block_size,
    )


def _capacity(settings: ExecutorSettings, card: ModelCard, free_bytes: int) -> Capacity:
    num_blocks = count_blocks(settings, card.kv_bytes_per_token, card.context_length, free_bytes)
    num_host_blocks = count_host_blocks(settings, card.kv_bytes_per_token)
    return Capacity(num_blocks, settings.block_size, settings.max_rows, card, num_host_blocks)
