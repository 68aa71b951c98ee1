"""The angles of rotary position embedding: how far each pair of elements of a head has turned at each position.

Cosines and sines are worked out once for every position of the context, and are the nearest float32 to those of angles
that are float32 themselves, as models are trained with. How frequencies are stretched for contexts longer than a model
was trained with: evenly (linear), by wavelength (Llama 3), or between the two by YaRN (arXiv 2309.00071).
"""

import math
from typing import NamedTuple

import numpy as np

from services.executor.batch import F32
from services.executor.config import RopeScaling


class Angles(NamedTuple):
    """Cosines and sines, [positions, head_dim / 2]."""

    cos: F32
    sin: F32


def make_angles(
    base: float, head_dim: int, num_positions: int, factors: F32 | None = None, scaling: RopeScaling | None = None
) -> Angles:
    """factors: what a GGUF file of Llama 3 divides its inverse frequencies by, [head_dim / 2]."""
    frequencies, magnitude = inverse_frequencies(base, head_dim), 1.0
    if factors is not None:
        frequencies = frequencies / factors
    if scaling is not None:
        frequencies, magnitude = stretched(frequencies, base, scaling), scaling.magnitude
    angles = np.outer(np.arange(num_positions, dtype=np.float32), frequencies).astype(np.float64)
    return Angles(*((turn(angles) * magnitude).astype(np.float32) for turn in (np.cos, np.sin)))


def inverse_frequencies(base: float, head_dim: int) -> F32:
    """[head_dim / 2]: how far each pair of elements turns from one position to the next, rounded to float32 once."""
    frequencies: F32 = (base ** -(np.arange(0, head_dim, 2) / head_dim)).astype(np.float32)
    return frequencies


def stretched(frequencies: F32, base: float, scaling: RopeScaling) -> F32:
    """The frequencies of a longer context. [head_dim / 2] -> the same."""
    match scaling.kind:
        case "linear":
            return frequencies / np.float32(scaling.factor)
        case "llama3":
            share = _share_by_wavelength(frequencies, scaling)
        case "yarn":
            share = _share_by_turns(len(frequencies), base, scaling)
    return (1 - share) * frequencies / np.float32(scaling.factor) + share * frequencies


def _share_by_wavelength(frequencies: F32, scaling: RopeScaling) -> F32:
    """Short waves stay, long ones are stretched by the factor, those between by a share of it."""
    turns = scaling.original_context * frequencies / (2 * math.pi)  # within the original context
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return share.clip(0, 1).astype(np.float32)


def _share_by_turns(count: int, base: float, scaling: RopeScaling) -> F32:
    """The same, the share falling evenly over the elements between those that turn beta_fast and beta_slow times
    within the original context."""
    head_dim = 2 * count

    def element(turns: float) -> float:
        wavelength = scaling.original_context / (turns * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(base))

    first, last = element(scaling.beta_fast), element(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first or 0.001
    falling: F32 = 1 - ((np.arange(count, dtype=np.float32) - first) / width).clip(0, 1).astype(np.float32)
    return falling
