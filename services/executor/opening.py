"""Opening a backend of a model's file: where its steps are computed, and by what.

torch takes longer to import than all else takes to start, so it is imported only where it computes: on a GPU, and on a
CPU for what the native kernels cannot do. Steps of the default model on a CPU need none of it.
"""

from pathlib import Path
from typing import Any

from services.executor import driver
from services.executor.backend import Backend
from services.executor.checkpoint import open_checkpoint
from services.executor.grammars import Grammars
from services.executor.native.choice import choose_kernels
from services.executor.native.opening import open_native
from services.executor.runner import CpuBackend
from services.executor.task import Task
from services.runtime.settings import ExecutorSettings


def open_model(settings: ExecutorSettings, path: Path, name: str = "", grammars: Grammars | None = None) -> Backend:
    """Load a model and make room for its KV where the settings say; raises ModelFileError, SettingsError.

    grammars: what slots may follow.
    """
    if settings.device == "cuda" or (settings.device == "auto" and driver.is_there()):
        from services.executor.torch_start import on_gpu, open_on_gpu  # noqa: PLC0415

        if on_gpu(settings):
            return open_on_gpu(Task(settings, open_checkpoint(path), name, grammars))
    return open_on_cpu(settings, path, name, grammars)


def open_on_cpu(
    settings: ExecutorSettings, path: Path, name: str = "", grammars: Grammars | None = None
) -> CpuBackend[Any, Any]:
    """The same on a CPU."""
    task = Task(settings, open_checkpoint(path), name, grammars)
    kernels = choose_kernels(settings, task.checkpoint.config)
    if kernels is not None:
        return open_native(task, kernels)
    from services.executor.torch_start import open_plain  # noqa: PLC0415

    return open_plain(task)
