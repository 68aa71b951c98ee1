"""Building the backends that compute with torch: weights, then the KV pool, since that takes what is left.

On a GPU it is another backend of the same model; what that is made of is imported only then.
"""

from typing import Any

import torch

from services.executor.backend import Backend
from services.executor.capacity import free_memory
from services.executor.kv_cache import BlockShape
from services.executor.operations import ReferenceOperations
from services.executor.placement import Placement
from services.executor.task import Task
from services.executor.torch_arrays import open_kv, plain_blocks
from services.executor.torch_backend import TorchBackend
from services.executor.weights import load_llama
from services.runtime.settings import ExecutorSettings, SettingsError

# What plain torch computes in; where the native kernels are missing, "fast" is float32 too.
_DTYPES = {"exact": torch.float32, "fast": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def on_gpu(settings: ExecutorSettings) -> bool:
    """Whether steps are computed there; raises SettingsError where a GPU is asked for and none is seen."""
    is_seen = settings.device != "cpu" and torch.cuda.is_available()
    if settings.device == "cuda" and not is_seen:
        raise SettingsError("executor.device: torch sees no GPU of CUDA")
    return is_seen


def open_plain(task: Task) -> TorchBackend[Any]:
    """On a CPU, by torch's own operations; raises SettingsError when no KV fits."""
    settings, config = task.settings, task.checkpoint.config
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    dtype = _DTYPES[settings.precision]
    model = load_llama(task.checkpoint, ReferenceOperations(), Placement(dtype=dtype))
    blocks = _blocks(task, dtype)
    capacity = task.capacity(blocks, blocks.value_type, free_memory())
    backend = TorchBackend(model, capacity, open_kv(capacity, config.num_layers, blocks))
    task.make_ready(backend, blocks.value_type)
    return backend


def open_on_gpu(task: Task) -> Backend:
    """Raises SettingsError when no KV fits, or the attention that is asked for cannot run."""
    from services.executor.cuda.gpu import CudaDevice  # noqa: PLC0415
    from services.executor.cuda.opening import DTYPES, open_backend, open_operations  # noqa: PLC0415

    settings = task.settings
    device, dtype = CudaDevice(), DTYPES[settings.precision]
    operations = open_operations(settings, device, dtype)
    model = load_llama(task.checkpoint, operations, Placement(device.target, dtype))
    blocks = _blocks(task, dtype)
    capacity = task.capacity(blocks, blocks.value_type, device.free_bytes())
    backend = open_backend(settings, model, capacity, blocks, device)
    task.make_ready(backend, blocks.value_type)
    return backend


def _blocks(task: Task, dtype: torch.dtype) -> BlockShape:
    config = task.checkpoint.config
    return plain_blocks(task.settings.block_size, config.num_kv_heads, config.head_dim, dtype)
