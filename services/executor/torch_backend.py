"""The backend of a model in torch, on a CPU: runner.py with torch's arrays."""

from typing import TypeVar

import torch
from torch import Tensor

from services.executor.backend import Outcome
from services.executor.batch import StepBatch
from services.executor.capacity import Capacity
from services.executor.kv_cache import KvCache
from services.executor.runner import CpuBackend, Model
from services.executor.torch_arrays import TORCH
from services.executor.torch_scores import TorchScores

P = TypeVar("P")


class TorchBackend(CpuBackend[Tensor, P]):
    """See runner.py."""

    def __init__(
        self, model: Model[Tensor, P], capacity: Capacity, kv: KvCache[Tensor], is_debug: bool = False
    ) -> None:
        super().__init__(model, TORCH, capacity, kv, is_debug)
        self.sample_by(TorchScores())

    @torch.inference_mode()
    def run(self, batch: StepBatch) -> Outcome:
        """One forward pass, then sampling."""
        return super().run(batch)
