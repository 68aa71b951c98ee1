"""What one step computes with, as a model and the operations take it. T new tokens of all rows lie in one dimension.

The arrays are of the kind that the model computes with: numpy's or torch's.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

A = TypeVar("A")
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class StepInputs(Generic[A, P]):
    """attention_plan is for the operations that prepared it."""

    token_ids: A  # [T]
    position_ids: A  # [T]
    slot_mapping: A  # [T] flat index of the KV cell that each new token is written to
    attention_plan: P
