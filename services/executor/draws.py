"""Counter-based randomness: the draw for an output position depends on (seed, position) and on nothing else.

No generator holds any state, so batching, preemption and restarts change no draw. The mixer is the finalizer of
SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014; constants of Stafford's
variant 13). The seed passes through it first, so that neighbouring seeds do not walk the same sequence one step apart.
"""

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]

MASK_64 = (1 << 64) - 1
# Below it every gap between two scores is beyond float32's range; it keeps gap / temperature finite.
MIN_TEMPERATURE = 1e-30
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mix(values: U64) -> U64:
    """A bijection of 64 bits in which every input bit reaches every output bit. Arrays only: scalars would warn."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def draw_bits(seeds: U64, positions: NDArray[np.integer]) -> U64:
    """64 random bits for each (seed, position)."""
    return mix(mix(seeds) + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def uniforms(seeds: U64, positions: NDArray[np.integer]) -> NDArray[np.float64]:
    """A number in [0, 1) with 53 random bits for each (seed, position)."""
    return (draw_bits(seeds, positions) >> np.uint64(11)).astype(np.float64) * 2.0**-53
