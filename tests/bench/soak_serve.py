"""A server under a mixed load for a long time: does its memory stay flat, is every block given back, is nothing wrong?

Clients ask for short and long prompts, read to the end, stop by a string, set deadlines, or leave in the middle. When
it is over, the resident memory of each process may have grown no more than chance would have it (the slope over the
run's later part, within three times its standard error, or under a hundredth of it), every KV block must be free, and
every call must have ended as its client would expect.

Usage: python -m tests.bench.soak_serve [--minutes N] [--clients N] [--seed N] [FLAGS of tandem serve]
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import psutil

from tandem import AsyncClient
from tandem.errors import Cancelled, DeadlineExceeded, TandemError
from tests.e2e.processes import Settings
from tests.e2e.serving import Serving, serving

SETTINGS: Settings = {
    "gateway": {"listen": "127.0.0.1:0"},
    "links": {"death_s": 60.0},
    "executor": {"num_blocks": 1025},
    "scheduler": {"max_num_seqs": 16},
}
VOCABULARY = 49152
SAMPLE_S = 5.0
SETTLED = 1 / 3  # of the run: caches fill, pools grow
MOST_GROWTH = 0.01
SIGMAS = 3.0


@dataclass
class Tally:
    """What happened. memory: resident bytes of each process, by time."""

    outcomes: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    memory: dict[str, list[tuple[float, int]]] = field(default_factory=dict)


async def client(server: AsyncClient, rng: random.Random, end: float, tally: Tally) -> None:
    """One request after another, each of another kind."""
    kinds = (plain, long_prompt, leaving, late, stopping, several)
    while time.monotonic() < end:
        kind = rng.choices(kinds, (6, 1, 3, 1, 2, 1))[0]
        try:
            await kind(server, rng)
            tally.outcomes[kind.__name__] += 1
        except (TandemError, AssertionError) as error:
            tally.unexpected.append(f"{kind.__name__}: {error!r}")


async def plain(server: AsyncClient, rng: random.Random) -> None:
    """Read to the end."""
    count, received = rng.randint(1, 96), 0
    prompt = prompt_of(rng, 4, 256)
    async for chunk in server.stream_generate(prompt, max_tokens=count, ignore_eos=True, seed=rng.getrandbits(32)):
        received += chunk.num_tokens
    assert received == count


async def long_prompt(server: AsyncClient, rng: random.Random) -> None:
    """Many chunks before the first token."""
    await server.generate(prompt_of(rng, 1000, 3000), max_tokens=4, temperature=0.0, ignore_eos=True)


async def leaving(server: AsyncClient, rng: random.Random) -> None:
    """Gone after some tokens, or before the first."""
    left, stream = rng.randint(0, 20), server.stream_generate(prompt_of(rng, 4, 600), max_tokens=400, ignore_eos=True)
    async with stream:
        if left:
            async for chunk in stream:
                left -= chunk.num_tokens
                if left <= 0:
                    break


async def late(server: AsyncClient, rng: random.Random) -> None:
    """A deadline that will pass."""
    try:
        await server.generate(prompt_of(rng, 4, 600), max_tokens=4000, ignore_eos=True, timeout_s=rng.uniform(0.01, 1))
    except (DeadlineExceeded, Cancelled):
        pass
    else:
        raise AssertionError("nothing can be so quick")


async def stopping(server: AsyncClient, rng: random.Random) -> None:
    """Ended by a text."""
    prompt = f"Count to {rng.randint(5, 99)}: 1, 2, 3,"
    await server.generate(prompt, max_tokens=64, temperature=0.0, stop=[" 9", "\n\n"])


async def several(server: AsyncClient, rng: random.Random) -> None:
    """Samples that share a prompt."""
    answer = await server.generate(prompt_of(rng, 20, 200), max_tokens=16, n=3, ignore_eos=True)
    assert len(answer.completions) == 3


def prompt_of(rng: random.Random, least: int, most: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(rng.randint(least, most))]


async def sample(server: Serving, tally: Tally, end: float) -> None:
    """Resident memory of the server's processes, again and again."""
    family = {name_of(process): process for process in psutil.Process(server.process.process.pid).children()}
    while time.monotonic() < end and family:
        for name, process in list(family.items()):
            try:
                tally.memory.setdefault(name, []).append((time.monotonic(), process.memory_info().rss))
            except psutil.NoSuchProcess:
                tally.unexpected.append(f"{name} has died")
                del family[name]
        await asyncio.sleep(SAMPLE_S)


def name_of(process: psutil.Process) -> str:
    """The module that a process runs."""
    line = process.cmdline()
    return line[line.index("-m") + 1] if "-m" in line else line[0]


def grows(samples: Sequence[tuple[float, int]]) -> tuple[bool, str]:
    """Whether memory rose by more than chance over the settled part of a run, and in words."""
    settled = samples[int(len(samples) * SETTLED) :]
    times, sizes = [at for at, _ in settled], [size for _, size in settled]
    slope, start = statistics.linear_regression(times, sizes)
    duration = times[-1] - times[0]
    rest = [size - (slope * at + start) for at, size in settled]
    spread = statistics.fmean((at - statistics.fmean(times)) ** 2 for at in times) * len(times)
    error = (sum(value * value for value in rest) / (len(rest) - 2) / spread) ** 0.5
    growth = slope * duration / sizes[0]
    doubt = error * duration / sizes[0]
    words = f"{sizes[0] / 2**20:.0f} MiB, {growth:+.2%} in {duration:.0f} s (standard error {doubt:.2%})"
    return growth > MOST_GROWTH and slope > SIGMAS * error, words


async def soak(server: Serving, seconds: float, num_clients: int, seed: int) -> Tally:
    """Load for so long."""
    tally, end = Tally(), time.monotonic() + seconds
    async with AsyncClient(server.address) as shared, asyncio.TaskGroup() as tasks:
        tasks.create_task(sample(server, tally, end))
        for number in range(num_clients):
            tasks.create_task(client(shared, random.Random(seed * 1000 + number), end, tally))
    return tally


def main() -> int:
    """Exit 1 when something is wrong, after saying what."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak_serve", description="A server under load.")
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    arguments, flags = parser.parse_known_args()
    problems = []
    with serving(SETTINGS, *flags) as server:
        tally = asyncio.run(soak(server, arguments.minutes * 60, arguments.clients, arguments.seed))
        load = server.idle(server.position())
        if load["num_free_blocks"] != load["num_blocks"]:
            problems.append(f"blocks were not given back: {load}")
        problems += [f"log: {entry}" for entry in server.entries() if entry["level"] == "error"]
    problems += tally.unexpected
    for name, samples in sorted(tally.memory.items()):
        is_growing, words = grows(samples)
        print(f"{name}: {words}")
        problems += [f"{name} grows"] * is_growing
    print(", ".join(f"{count} {name}" for name, count in sorted(tally.outcomes.items())))
    for problem in problems:
        print(f"PROBLEM {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
