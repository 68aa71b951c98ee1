"""Several servers under the same load in one run: level by level, in turns, so that what drifts hits all of them.

Each turn of a level has a request set of its own (no server can have cached it) which every server gets.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from tandem.load.calls import Call
from tandem.load.loops import Target, closed_loop, open_loop
from tandem.load.summary import Summary, Targets, summarize
from tandem.load.workload import Demand


@dataclass(frozen=True, slots=True)
class Level:
    """One kind of load. demands: the set of a turn. num_clients: of a closed loop; None for an open one."""

    name: str
    demands: Callable[[int], Sequence[Demand]]
    num_clients: int | None


@dataclass(frozen=True, slots=True)
class Bout:
    """One level's runs against one server, a run a turn."""

    level: str
    target: str
    runs: tuple[tuple[Call, ...], ...]

    def summary(self, targets: Targets) -> Summary:
        return summarize(self.runs, targets)


async def fight(servers: Mapping[str, Target], levels: Sequence[Level], num_turns: int) -> AsyncIterator[Bout]:
    """For each level, a bout for each server."""
    for level in levels:
        runs: dict[str, list[tuple[Call, ...]]] = {name: [] for name in servers}
        for turn in range(num_turns):
            demands = level.demands(turn)
            for name, server in servers.items():
                runs[name].append(tuple(await _run(server, level, demands)))
        for name in servers:
            yield Bout(level.name, name, tuple(runs[name]))


def ratios(summaries: Mapping[tuple[str, str], Summary], own: str) -> dict[str, dict[str, float]]:
    """Output tokens per second of `own` over those of each other server, by level; summaries are by (level, server).
    A server that put nothing out has no ratio."""
    result: dict[str, dict[str, float]] = {}
    for (level, target), summary in summaries.items():
        if target != own and summary.output_tokens_per_s:
            mine = summaries[level, own].output_tokens_per_s
            result.setdefault(level, {})[target] = mine / summary.output_tokens_per_s
    return result


async def _run(server: Target, level: Level, demands: Sequence[Demand]) -> list[Call]:
    if level.num_clients is None:
        return await open_loop(server, demands)
    return await closed_loop(server, demands, level.num_clients)
