"""The device's backend on a CPU: the tiny model of the executor's tests, with whatever is to be tried."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from services.executor.capacity import Capacity
from services.executor.checkpoint import open_checkpoint
from services.executor.cuda import gumbel
from services.executor.cuda.backend import DeviceBackend, Draw, Options
from services.executor.cuda.buckets import buckets_up_to
from services.executor.cuda.choice import Choice
from services.executor.cuda.device import CpuDevice, Device
from services.executor.cuda.device_operations import PlainOperations
from services.executor.cuda.memory import DeviceKv
from services.executor.cuda.opening import sizes_of
from services.executor.operations import ReferenceOperations
from services.executor.placement import Placement
from services.executor.torch_arrays import open_kv, plain_blocks
from services.executor.torch_backend import TorchBackend
from services.executor.weights import load_llama
from services.wire.messages import ModelCard

GATHER = Choice("gather", "gather")


@dataclass(frozen=True)
class Built:
    """What a backend is made of. operations: the class; draw: how tokens are drawn."""

    operations: type[PlainOperations] = PlainOperations
    choice: Choice = GATHER
    draw: Draw = gumbel.draw
    graph_rows: int = 0


PLAIN = Built()


def capacity_of(context: int, vocab_size: int, num_host_blocks: int = 8) -> Capacity:
    card = ModelCard(name="tiny", vocab_size=vocab_size, context_length=context, eos_token_ids=(2,))
    return Capacity(num_blocks=96, block_size=4, max_rows=8, card=card, num_host_blocks=num_host_blocks)


def device_backend(path: Path, built: Built = PLAIN, device: Device | None = None) -> DeviceBackend:
    """On a CPU unless told otherwise."""
    device = device or CpuDevice()
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    operations = built.operations(built.choice, device.num_processors, device.target)
    model = load_llama(checkpoint, operations, Placement(device.target))
    capacity = capacity_of(config.context_length, config.vocab_size)
    kv = DeviceKv(capacity, config.num_layers, plain_blocks(4, config.num_kv_heads, config.head_dim), device)
    sizes = sizes_of(capacity, config, buckets_up_to(built.graph_rows), torch.float32)
    return DeviceBackend(model, capacity, kv, device, Options(sizes, built.draw))


def oracle(path: Path) -> TorchBackend[object]:
    """The CPU's backend in plain torch."""
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    capacity = capacity_of(config.context_length, config.vocab_size)
    kv = open_kv(capacity, config.num_layers, plain_blocks(4, config.num_kv_heads, config.head_dim))
    return TorchBackend(load_llama(checkpoint, ReferenceOperations()), capacity, kv)  # type: ignore[arg-type]


def indices(*values: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array(values, np.int64)
