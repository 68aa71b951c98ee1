"""Workloads: who asks for what, and when. Seeded: the same seed gives the same workload.

A Demand is one request in counts: tokens of its prompt, tokens it wants, its tenant and priority. A Workload releases
demands at their times, and the rest as requests of their tenant end (a closed loop). Knows nothing of scheduling.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from services.scheduler.virtual.device import NS_PER_S

Draw = Callable[[random.Random], int]


@dataclass(frozen=True, slots=True)
class Demand:
    """One request. at: nanoseconds from the start; for those of a closed loop the start itself."""

    at: int
    num_prompt_tokens: int
    num_output_tokens: int
    tenant: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """timed: released at their times. queued: the next of a tenant is released when a request of that tenant ends."""

    timed: tuple[Demand, ...]
    queued: tuple[Demand, ...] = ()

    def __add__(self, other: "Workload") -> "Workload":
        return Workload(self.timed + other.timed, self.queued + other.queued)

    def __len__(self) -> int:
        return len(self.timed) + len(self.queued)


@dataclass(frozen=True, slots=True)
class Kind:
    """What the requests of one tenant are like."""

    prompt: Draw
    output: Draw
    tenant: str = ""
    priority: int = 0

    def demand(self, rng: random.Random, at: int) -> Demand:
        return Demand(at, self.prompt(rng), self.output(rng), self.tenant, self.priority)


def always(count: int) -> Draw:
    return lambda _: count


def uniform(least: int, most: int) -> Draw:
    return lambda rng: rng.randint(least, most)


def log_normal(median: int, spread: float, most: int) -> Draw:
    """Long-tailed lengths: half are below the median; spread is that of the logarithm."""
    return lambda rng: max(1, min(most, round(median * rng.lognormvariate(0.0, spread))))


def mixed(draws: Iterable[tuple[float, Draw]]) -> Draw:
    """One of several draws, by weight."""
    weights, choices = zip(*draws, strict=True)

    def draw(rng: random.Random) -> int:
        chosen: Draw = rng.choices(choices, weights)[0]
        return chosen(rng)

    return draw


def poisson(kind: Kind, count: int, per_second: float, seed: int) -> Workload:
    """Arrivals that know nothing of one another."""
    rng = random.Random(seed)
    return Workload(tuple(kind.demand(rng, at) for at in islice(_poisson_times(rng, per_second), count)))


def bursts(kind: Kind, count: int, size: int, every_s: float, seed: int) -> Workload:
    """So many at once, again and again."""
    rng = random.Random(seed)
    return Workload(tuple(kind.demand(rng, round(number // size * every_s * NS_PER_S)) for number in range(count)))


def closed_loop(kind: Kind, count: int, num_clients: int, seed: int) -> Workload:
    """Clients that each wait for one answer before they ask again."""
    rng = random.Random(seed)
    demands = tuple(kind.demand(rng, 0) for _ in range(count))
    return Workload(demands[:num_clients], demands[num_clients:])


def _poisson_times(rng: random.Random, per_second: float) -> Iterator[int]:
    at = 0.0
    while True:
        at += rng.expovariate(per_second)
        yield round(at * NS_PER_S)
