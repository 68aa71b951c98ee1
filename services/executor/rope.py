"""Rotary position embedding, half-split: element j of a head turns together with element j + head_dim / 2.

Tables are float32 and made once for every position of the context. How frequencies are stretched for contexts longer
than a model was trained with: evenly (linear), by wavelength (Llama 3), or between the two by YaRN (arXiv 2309.00071).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from services.executor.config import RopeScaling


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


def stretched(frequencies: Tensor, base: float, scaling: RopeScaling) -> Tensor:
    """The frequencies of a longer context. [head_dim / 2] -> the same."""
    match scaling.kind:
        case "linear":
            return frequencies / scaling.factor
        case "llama3":
            return _by_wavelength(frequencies, scaling)
        case "yarn":
            return _by_turns(frequencies, base, scaling)


def make_tables(
    base: float, head_dim: int, num_positions: int, factors: Tensor | None = None, scaling: RopeScaling | None = None
) -> RopeTables:
    """factors: what a GGUF file of Llama 3 divides its inverse frequencies by, [head_dim / 2]."""
    frequencies, magnitude = inverse_frequencies(base, head_dim), 1.0
    if factors is not None:
        frequencies = frequencies / factors
    if scaling is not None:
        frequencies, magnitude = stretched(frequencies, base, scaling), scaling.magnitude
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return RopeTables(angles.cos() * magnitude, angles.sin() * magnitude)


def still_tables(head_dim: int, num_positions: int) -> RopeTables:
    """Those of a layer that turns nothing."""
    shape = (num_positions, head_dim // 2)
    return RopeTables(torch.ones(shape), torch.zeros(shape))


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn heads [T, heads, head_dim] by the angles of their tokens, cos and sin [T, 1, head_dim / 2]."""
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(heads.dtype)


def _by_wavelength(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Short waves stay, long ones are stretched by the factor, those between by a share of it."""
    turns = scaling.original_context * frequencies / (2 * math.pi)  # within the original context
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share = share.clamp(0, 1)
    return (1 - share) * frequencies / scaling.factor + share * frequencies


def _by_turns(frequencies: Tensor, base: float, scaling: RopeScaling) -> Tensor:
    """As _by_wavelength, the share falling evenly over the elements between those that turn beta_fast and beta_slow
    times within the original context."""
    head_dim = 2 * len(frequencies)

    def element(turns: float) -> float:
        wavelength = scaling.original_context / (turns * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(base))

    first, last = element(scaling.beta_fast), element(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first or 0.001
    share = 1 - ((torch.arange(len(frequencies), dtype=torch.float32) - first) / width).clamp(0, 1)
    return (1 - share) * frequencies / scaling.factor + share * frequencies
