"""Rotary position embedding, half-split: element j of a head turns together with element j + head_dim / 2.

Tables are float32 and made once for every position of the context.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RopeTables:
    """Cosines and sines, [positions, head_dim / 2]."""

    cos: Tensor
    sin: Tensor

    def at(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines for rotate(): [T] -> twice [T, 1, head_dim / 2]."""
        return self.cos.index_select(0, position_ids)[:, None], self.sin.index_select(0, position_ids)[:, None]


def inverse_frequencies(base: float, head_dim: int) -> Tensor:
    """[head_dim / 2]: how far each pair of elements turns from one position to the next, rounded to float32 once."""
    return (base ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)).float()


def make_tables(base: float, head_dim: int, num_positions: int, factors: Tensor | None = None) -> RopeTables:
    """factors: what the model divides its inverse frequencies by, [head_dim / 2] (Llama 3 in GGUF files)."""
    frequencies = inverse_frequencies(base, head_dim)
    if factors is not None:
        frequencies = frequencies / factors
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return RopeTables(angles.cos(), angles.sin())


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn heads [T, heads, head_dim] by the angles of their tokens, cos and sin [T, 1, head_dim / 2]."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
