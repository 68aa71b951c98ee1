"""Building the backend of the native kernels: weights, then the KV pool, since that takes what is left."""

from typing import Any

from services.executor.arrays import NUMPY, as_stored
from services.executor.capacity import free_memory
from services.executor.cores import num_cores
from services.executor.kv_cache import KvCache
from services.executor.native.binding import Kernels, Shape
from services.executor.native.choice import kv_type
from services.executor.native.loading import load_native
from services.executor.native.model import kv_blocks
from services.executor.native.packing import Packer
from services.executor.native.scores import NativeScores
from services.executor.runner import CpuBackend
from services.executor.task import Task


def open_native(task: Task, kernels: Kernels) -> CpuBackend[Any, Any]:
    """raises SettingsError when no KV fits."""
    settings, config = task.settings, task.checkpoint.config
    num_threads = settings.num_threads or num_cores()
    shape = Shape(config.num_heads, config.num_kv_heads, config.head_dim, settings.block_size, kv_type(settings))
    model = load_native(task.checkpoint, shape, Packer(kernels, num_threads))
    blocks, computes_in = kv_blocks(shape), f"int8 {kernels.name.decode()}"
    capacity = task.capacity(blocks, computes_in, free_memory())
    kv = KvCache(capacity, config.num_layers, blocks, as_stored)
    backend = CpuBackend(model, NUMPY, capacity, kv)
    backend.sample_by(NativeScores(kernels, num_threads))
    task.make_ready(backend, computes_in)
    return backend
