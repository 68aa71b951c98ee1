"""Request sets: what is asked for, and when. Seeded: the same arguments give the same set, byte for byte.

A set comes from a generator, or from a file of JSON lines: {"token_ids": [...] or "text": "...", "max_tokens": N,
"arrival_s": seconds from the start}, of which arrival_s may be left out (0). Knows nothing of servers.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct


class Demand(Struct, frozen=True):
    """One request. arrival_s: when it is sent in an open loop; a closed loop has its own times."""

    prompt: str | tuple[int, ...]
    max_tokens: int
    arrival_s: float = 0.0


class Lengths(Struct, frozen=True):
    """Tokens of prompts or outputs: uniform from least to most, 1 <= least <= most."""

    least: int
    most: int

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.least, self.most)


class WorkloadError(ValueError):
    """A file that cannot be read as a request set; says which line, and why."""


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    max_tokens: int
    token_ids: tuple[int, ...] = ()
    text: str = ""
    arrival_s: float = 0.0


def generate(count: int, prompt: Lengths, output: Lengths, vocab_size: int, seed: int) -> tuple[Demand, ...]:
    """Prompts of random ids, none of which share a prefix but by chance; ids are drawn from 0 .. vocab_size - 1."""
    rng = random.Random(seed)
    return tuple(
        Demand(tuple(rng.randrange(vocab_size) for _ in range(prompt.draw(rng))), output.draw(rng))
        for _ in range(count)
    )


def read(path: Path) -> tuple[Demand, ...]:
    """The set that a file holds, in its order. Raises WorkloadError, or OSError."""
    demands = tuple(_demand(path, number, line) for number, line in _lines(path))
    if not demands:
        raise WorkloadError(f"{path}: there is no request in it")
    return demands


def poisson(demands: Sequence[Demand], per_second: float, seed: int) -> tuple[Demand, ...]:
    """Arrivals that know nothing of one another: exponential gaps with a mean of 1 / per_second."""
    return at_times(demands, _poisson_times(per_second, random.Random(seed)))


def bursts(demands: Sequence[Demand], size: int, every_s: float) -> tuple[Demand, ...]:
    """So many at once, again and again."""
    return at_times(demands, (number // size * every_s for number in range(len(demands))))


def at_times(demands: Sequence[Demand], times: Iterator[float]) -> tuple[Demand, ...]:
    return tuple(msgspec.structs.replace(demand, arrival_s=at) for demand, at in zip(demands, times, strict=False))


def _poisson_times(per_second: float, rng: random.Random) -> Iterator[float]:
    at = 0.0
    while True:
        at += rng.expovariate(per_second)
        yield at


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if line.strip():
            yield number, line


def _demand(path: Path, number: int, line: bytes) -> Demand:
    try:
        read = msgspec.json.decode(line, type=_Line)
    except msgspec.DecodeError as error:
        raise WorkloadError(f"{path}, line {number}: {error}") from error
    if bool(read.token_ids) == bool(read.text):
        raise WorkloadError(f"{path}, line {number}: exactly one of token_ids and text must be there")
    if read.max_tokens < 1 or read.arrival_s < 0:
        raise WorkloadError(f"{path}, line {number}: max_tokens must be at least 1, and arrival_s no less than 0")
    return Demand(read.token_ids or read.text, read.max_tokens, read.arrival_s)
