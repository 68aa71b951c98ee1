"""What the scheduler learns from what it sees: how long a step takes, how long outputs are, how quickly blocks copy.

Every estimate starts empty, says so, and is fed facts that arrive in messages; nothing here reads a clock.
"""

from collections.abc import Sequence as Row

_FORGET = 0.995  # weight of the past at each step: a memory of some 200 steps
_MIN_SAMPLES = 8


class StepTime:
    """Microseconds of a step as a + b x tokens + c x KV positions, by recursive least squares with forgetting
    (Haykin, Adaptive Filter Theory, chapter on RLS). Inputs are scaled to the order of one."""

    _SCALE = (1.0, 1e-2, 1e-4)

    def __init__(self) -> None:
        self.num_samples = 0
        self._weights = [0.0, 0.0, 0.0]
        self._covariance = [[1e6 if i == j else 0.0 for j in range(3)] for i in range(3)]

    @property
    def is_known(self) -> bool:
        return self.num_samples >= _MIN_SAMPLES

    def learn(self, num_tokens: int, num_positions: int, duration_us: float) -> None:
        """A step of so many new tokens over so many KV positions took so long."""
        x = self._scaled(num_tokens, num_positions)
        projected = [_dot(row, x) for row in self._covariance]
        gain = [p / (_FORGET + _dot(projected, x)) for p in projected]
        error = duration_us - _dot(self._weights, x)
        self._weights = [w + g * error for w, g in zip(self._weights, gain, strict=True)]
        self._covariance = [
            [(c - g * p) / _FORGET for c, p in zip(row, projected, strict=True)]
            for row, g in zip(self._covariance, gain, strict=True)
        ]
        # Forgetting inflates directions that are never excited; a bound keeps them from overflowing.
        if max(self._covariance[i][i] for i in range(3)) > 1e9:
            self._covariance = [[c * 1e-3 for c in row] for row in self._covariance]
        self.num_samples += 1

    def predict(self, num_tokens: int, num_positions: int) -> float:
        """Microseconds; never negative."""
        return max(0.0, _dot(self._weights, self._scaled(num_tokens, num_positions)))

    @property
    def us_per_token(self) -> float:
        return max(0.0, self._weights[1] * self._SCALE[1])

    def _scaled(self, num_tokens: int, num_positions: int) -> list[float]:
        return [scale * value for scale, value in zip(self._SCALE, (1, num_tokens, num_positions), strict=True)]


def _dot(left: Row[float], right: Row[float]) -> float:
    return left[0] * right[0] + left[1] * right[1] + left[2] * right[2]


class OutputLength:
    """Mean and spread of output lengths, exponentially weighted."""

    _WEIGHT = 0.02

    def __init__(self) -> None:
        self.num_samples = 0
        self.mean = 0.0
        self._variance = 0.0

    @property
    def is_known(self) -> bool:
        return self.num_samples >= _MIN_SAMPLES

    def learn(self, num_tokens: int) -> None:
        """A sequence ended by itself with so many output tokens."""
        self.num_samples += 1
        weight = max(self._WEIGHT, 1.0 / self.num_samples)
        delta = num_tokens - self.mean
        self.mean += weight * delta
        self._variance = (1 - weight) * (self._variance + weight * delta * delta)

    def likely(self, num_spreads: float) -> float:
        """The mean and so many standard deviations more."""
        return float(self.mean + num_spreads * self._variance**0.5)


class CopyTime:
    """Microseconds that copying one block between device and host costs, one way: all time over all blocks, the recent
    first, so that a small copy, of which little can be seen, decides little.

    t_step_done, t_copy_done: when the last step was done and, at the earliest, the last copy (nanoseconds).
    """

    _FORGET = 0.8  # weight of the past at each copy

    def __init__(self) -> None:
        self.t_step_done = 0
        self.t_copy_done = 0
        self._us = 0.0
        self._num_blocks = 0.0

    def learn(self, num_blocks: int, cost_us: float) -> None:
        self._us = self._us * self._FORGET + cost_us
        self._num_blocks = self._num_blocks * self._FORGET + num_blocks

    @property
    def us_per_block(self) -> float | None:
        """None until a copy has ended."""
        return self._us / self._num_blocks if self._num_blocks else None
