"""Where a model's weights live and what their values are there. Norms and rotary tables are float32 everywhere."""

from dataclasses import dataclass

import torch
from torch import Tensor

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Placement:
    """dtype: of matrices, biases, hidden states and KV."""

    device: torch.device = CPU
    dtype: torch.dtype = torch.float32

    def matrix(self, values: Tensor) -> Tensor:
        """Weights or biases, float32 as read."""
        return values.to(self.device, self.dtype)

    def exact(self, values: Tensor) -> Tensor:
        """What stays float32."""
        return values.to(self.device)
