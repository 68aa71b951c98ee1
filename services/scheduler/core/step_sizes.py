"""How large steps were and how long they took, counted in buckets that double.

Fed after each step's sends, so that it costs no step anything. Knows sizes and durations; knows no request.
"""

NUM_SIZES = 16  # up to 2**14 tokens, and more
NUM_TIMES = 18  # up to 2**16 x 100 microseconds, and more
TIME_UNIT_US = 100


class StepSizes:
    """Totals since the start. Entry i of a list counts what is at most 2**i units and more than entry i - 1 holds; the
    last entry counts all that is larger."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.time_us = 0
        self.by_tokens = [0] * NUM_SIZES
        self.by_time = [0] * NUM_TIMES

    def note(self, num_tokens: int, time_us: int) -> None:
        """One step of so many tokens, at least 1, took so long on the device."""
        self.num_tokens += num_tokens
        self.time_us += time_us
        self.by_tokens[min((num_tokens - 1).bit_length(), NUM_SIZES - 1)] += 1
        units = -(-time_us // TIME_UNIT_US)
        self.by_time[min(max(units - 1, 0).bit_length(), NUM_TIMES - 1)] += 1
