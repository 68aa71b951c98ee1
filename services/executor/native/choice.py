"""Whether the native kernels run a model: what was asked for, what was built, what processor and model allow."""

import structlog

from services.executor.config import LlamaConfig
from services.executor.native.binding import Kernels, KernelsError, KvType, built_library, open_kernels, open_library
from services.executor.native.loading import unsupported
from services.runtime.settings import ExecutorSettings

log = structlog.get_logger()

_KV_TYPES = {"auto": KvType.FLOAT16, "float32": KvType.FLOAT32, "float16": KvType.FLOAT16, "int8": KvType.INT8}


def choose_kernels(settings: ExecutorSettings, config: LlamaConfig) -> Kernels | None:
    """The fastest kernels there are; None, with a line in the log unless that was asked for, when torch has to do."""
    if settings.precision != "fast":
        return None
    reason = unsupported(config, settings.block_size)
    if not reason:
        try:
            return open_kernels(open_library(built_library()))
        except KernelsError as error:
            reason = str(error)
    log.warning("kernels.missing", reason=reason, instead="torch, float32")
    return None


def kv_type(settings: ExecutorSettings) -> KvType:
    """What the kernels' KV memory holds."""
    return _KV_TYPES[settings.kv_dtype]
