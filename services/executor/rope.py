"""Rotary position embedding in torch, half-split: element j of a head turns together with element j + head_dim / 2.

How far, rope_angles.py knows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.executor.rope_angles import Angles


@dataclass(frozen=True, slots=True)
class RopeTables:
    """Cosines and sines, [positions, head_dim / 2]."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, angles: Angles) -> "RopeTables":
        """The same numbers."""
        return cls(torch.from_numpy(angles.cos), torch.from_numpy(angles.sin))

    def at(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for rotate(): [T] -> twice [T, 1, head_dim / 2]."""
        return self.cos.index_select(0, position_ids)[:, None], self.sin.index_select(0, position_ids)[:, None]


def still_tables(head_dim: int, num_positions: int) -> RopeTables:
    """Those of a layer that turns nothing."""
    shape = (num_positions, head_dim // 2)
    return RopeTables(torch.ones(shape), torch.zeros(shape))


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn heads [T, heads, head_dim] by the angles of their tokens, cos and sin [T, 1, head_dim / 2]."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)
