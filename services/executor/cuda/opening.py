"""Building the backend of a GPU: which attention, in what type, how much memory, which steps are captured."""

import structlog
import torch

from services.executor.capacity import Capacity
from services.executor.config import LlamaConfig
from services.executor.cuda import gumbel
from services.executor.cuda.backend import DeviceBackend, Draw, Options
from services.executor.cuda.buckets import buckets_up_to
from services.executor.cuda.choice import Choice, choose, facts_of
from services.executor.cuda.device import Device
from services.executor.cuda.device_operations import PlainOperations, TritonOperations
from services.executor.cuda.graphs import Sizes
from services.executor.cuda.layout import Layout
from services.executor.cuda.memory import DeviceKv
from services.executor.cuda.plan import DevicePlan
from services.executor.cuda.staging import forward_fields, other_fields, table_width
from services.executor.kv_cache import BlockShape
from services.executor.model import Llama
from services.executor.torch_arrays import dtype_of
from services.runtime.settings import ExecutorSettings

log = structlog.get_logger()

# "fast" has no native kernels to mean here: it is the type that models are published in.
DTYPES = {"exact": torch.float32, "fast": torch.bfloat16, "bfloat16": torch.bfloat16, "float16": torch.float16}


def open_operations(settings: ExecutorSettings, device: Device, dtype: torch.dtype) -> PlainOperations:
    """Raises SettingsError when the attention that is asked for cannot run here."""
    choice = choose(facts_of(device.target, dtype, settings.block_size), settings.attention)
    log.info("attention.chosen", decode=choice.decode, mixed=choice.mixed, passed_over=choice.passed_over)
    kind = TritonOperations if "triton" in (choice.decode, choice.mixed) else PlainOperations
    return kind(choice, device.num_processors, device.target)


def open_draw(choice: Choice) -> Draw:
    """How tokens are drawn, where attention is so chosen."""
    if "triton" not in (choice.decode, choice.mixed):
        return gumbel.draw
    from services.executor.cuda import draw_kernels  # noqa: PLC0415

    return draw_kernels.draw


def sizes_of(capacity: Capacity, config: LlamaConfig, buckets: tuple[int, ...], dtype: torch.dtype) -> Sizes:
    """buckets: of the steps to be captured, rising."""
    most = max(buckets, default=0)
    fields = [*forward_fields(most, most), *other_fields(most, table_width(capacity.max_blocks_per_slot), (most, most))]
    return Sizes(buckets, Layout(fields).num_bytes, config.hidden_size, dtype, config.num_kv_heads)


def open_backend(
    settings: ExecutorSettings, model: Llama[DevicePlan], capacity: Capacity, blocks: BlockShape, device: Device
) -> DeviceBackend:
    """A model with its weights on the device: makes room for KV there, and captures the decode steps."""
    config = model.config
    kv = DeviceKv(capacity, config.num_layers, blocks, device)
    buckets = buckets_up_to(min(settings.graph_rows, capacity.max_rows))
    operations = model.operations
    assert isinstance(operations, PlainOperations)
    options = Options(sizes_of(capacity, config, buckets, dtype_of(blocks)), open_draw(operations.choice))
    return DeviceBackend(model, capacity, kv, device, options)
