"""Reading the knobs of a request: the value or its default, and a violation for what is out of range.

Every test is written so that NaN fails it. Violations are collected, not raised, so that a client learns of all its
mistakes at once; a reader that found one returns the default. Knows field paths and ranges; knows nothing of what a
knob means.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import cast

from google.protobuf.message import Message

from gateway.errors import Violation, invalid

# What a refused value may take of an error message.
MAX_SHOWN_CHARS = 64


@dataclass(frozen=True)
class Range:
    """The values that are right, both ends included, and how to say so."""

    low: float
    high: float
    text: str

    def holds(self, value: float) -> bool:
        """Whether the value is right; False for NaN."""
        return self.low <= value <= self.high


ABOVE_ZERO_TO_ONE = Range(math.ulp(0.0), 1.0, "> 0 and <= 1")
ZERO_TO_ONE = Range(0.0, 1.0, ">= 0 and <= 1")
ANY_COUNT = Range(0, math.inf, ">= 0")
AT_LEAST_ONE = Range(1, math.inf, ">= 1")


def between(low: int, high: int) -> Range:
    """Whole numbers from low to high."""
    return Range(low, high, f">= {low} and <= {high}")


class Fields:
    """The fields of one message of a request, under their path."""

    def __init__(self, message: Message, path: str, violations: list[Violation]) -> None:
        self._message = message
        self._path = f"{path}." if path else ""
        self._violations = violations

    def real(self, name: str, default: float, allowed: Range) -> float:
        """An optional number."""
        if not self._message.HasField(name):
            return default
        value = float(getattr(self._message, name))
        return value if self._check(name, value, allowed) else default

    def integer(self, name: str, allowed: Range) -> int | None:
        """An optional whole number; None when absent."""
        if not self._message.HasField(name):
            return None
        value = int(getattr(self._message, name))
        return value if self._check(name, value, allowed) else None

    def flag(self, name: str, default: bool) -> bool:
        """An optional truth value."""
        return bool(getattr(self._message, name)) if self._message.HasField(name) else default

    def string(self, name: str, max_chars: int) -> str:
        """An optional string of at most max_chars characters; empty when absent."""
        value = str(getattr(self._message, name))
        if len(value) <= max_chars:
            return value
        self.wrong(name, f"must have at most {max_chars} characters, has {len(value)}")
        return ""

    def count(self, name: str, max_count: int) -> bool:
        """Whether a repeated field has at most max_count entries."""
        size = len(cast("Collection[object]", getattr(self._message, name)))
        if size > max_count:
            self.wrong(name, f"must have at most {max_count} entries, has {size}")
        return size <= max_count

    def token_ids(self, name: str, vocab_size: int) -> list[int]:
        """A repeated field of token ids; those outside the vocabulary are a violation, and then the list is empty."""
        ids = list(cast("Iterable[int]", getattr(self._message, name)))
        if not ids or max(ids) < vocab_size:
            return ids
        index = next(index for index, token_id in enumerate(ids) if token_id >= vocab_size)
        self.wrong(f"{name}[{index}]", f"must be a token id < {vocab_size}, is {ids[index]}")
        return []

    def wrong(self, name: str, description: str) -> None:
        """Note a violation."""
        self._violations.append(Violation(self._path + name, description))

    def _check(self, name: str, value: float, allowed: Range) -> bool:
        if allowed.holds(value):
            return True
        self.wrong(name, f"must be {allowed.text}, is {value}")
        return False


def refuse_if_any(violations: list[Violation]) -> None:
    """Raise the CallError for what was noted, if anything was."""
    if violations:
        raise invalid(violations)


def shown(text: str) -> str:
    """A client's own text as an error message may repeat it."""
    return repr(text) if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]!r}..."
