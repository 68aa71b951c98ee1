"""The tensors of one step, as a model and the operations take them. T new tokens of all rows lie in one dimension."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class StepInputs(Generic[P]):
    """attention_plan is for the operations that prepared it."""

    token_ids: Tensor  # [T]
    position_ids: Tensor  # [T]
    slot_mapping: Tensor  # [T] flat index of the KV cell that each new token is written to
    attention_plan: P
