"""`tandem bench`: load for a server, and for others beside it, and what came of it as a table, a file and plots.

Exit codes: 0; 1 when a call failed; 2 for arguments that cannot be used.
"""

import asyncio
import json as json_text
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from tandem.aio import AsyncClient
from tandem.cli import knobs, load_knobs
from tandem.cli.failures import BAD_INPUT, FAILED, told
from tandem.cli.load_report import OWN, as_json, show
from tandem.load.duel import Bout, Level, fight
from tandem.load.loops import Target
from tandem.load.summary import Summary, Targets
from tandem.load.tandem_target import TandemTarget
from tandem.load.workload import Demand, Lengths, WorkloadError, bursts, generate, poisson, read
from tandem.retries import NO_RETRIES

READY_S = 60.0
LEAST_REQUESTS, REQUESTS_AT_A_RATE = 16, 64

Sets = Callable[[int], Sequence[Demand]]  # the requests of each turn
Peers = Mapping[str, tuple[str, Mapping[str, object]]]  # by name: where it is, and what its bodies hold besides


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent: a set of a file, or one made of lengths; in closed loops, or at a rate."""

    num_requests: int | None
    prompt: Lengths
    output: Lengths
    seed: int
    file: tuple[Demand, ...] | None
    concurrency: tuple[int, ...]
    rates: tuple[float, ...]
    burst: int
    is_replay: bool

    def levels(self, vocab_size: int) -> list[Level]:
        """Each with sets of its own."""
        if self.is_replay:
            return [Level("replay", self._sets(0, 0, vocab_size), None)]
        closed = [
            Level(f"c={clients}", self._sets(number, 3 * clients, vocab_size), clients)
            for number, clients in enumerate(self.concurrency)
        ]
        opened = [
            Level(f"{rate:g}/s", self._timed(number, rate, vocab_size), None)
            for number, rate in enumerate(self.rates, start=len(closed))
        ]
        return [*closed, *opened]

    def _timed(self, number: int, rate: float, vocab_size: int) -> Sets:
        sets = self._sets(number, REQUESTS_AT_A_RATE, vocab_size)

        def timed(turn: int) -> Sequence[Demand]:
            if self.burst > 1:
                return bursts(sets(turn), self.burst, self.burst / rate)
            return poisson(sets(turn), rate, self._seed(number, turn))

        return timed

    def _sets(self, number: int, typical: int, vocab_size: int) -> Sets:
        """typical: how many requests, when nobody says."""

        def made(turn: int) -> Sequence[Demand]:
            if self.file is not None:
                return self.file
            count = self.num_requests or max(typical, LEAST_REQUESTS)
            return generate(count, self.prompt, self.output, vocab_size, self._seed(number, turn))

        return made

    def _seed(self, number: int, turn: int) -> int:
        return self.seed + number * load_knobs.MAX_TURNS + turn


def load(
    context: typer.Context,
    address: knobs.Address = knobs.ADDRESS,
    against: load_knobs.Against = None,
    against_fields: load_knobs.AgainstFields = "{}",
    concurrency: load_knobs.Concurrency = None,
    rate: load_knobs.Rate = None,
    burst: load_knobs.Burst = 1,
    requests: load_knobs.Requests = None,
    replay: load_knobs.Replay = False,
    num_requests: load_knobs.NumRequests = None,
    prompt_tokens: load_knobs.PromptTokens = "32-256",
    output_tokens: load_knobs.OutputTokens = "16-128",
    seed: load_knobs.Seed = 0,
    turns: load_knobs.Turns = 1,
    warm_up: load_knobs.WarmUp = 4,
    ttft_target_ms: load_knobs.TtftTargetMs = 1000.0,
    itl_target_ms: load_knobs.ItlTargetMs = 100.0,
    json: load_knobs.Json = None,
    plots: load_knobs.Plots = None,
) -> None:
    """Put a server under load, and others beside it, and say what they are worth."""
    if context.invoked_subcommand is not None:
        return
    draw = _drawing() if plots is not None else None
    if against:
        _completions()  # before anything is run
    prompt, output = _lengths(prompt_tokens, "--prompt-tokens"), _lengths(output_tokens, "--output-tokens")
    levels = () if replay else tuple(concurrency or (() if rate else (1, 8, 32)))
    if replay and requests is None:
        raise typer.BadParameter("needs --requests", param_hint="--replay")
    wanted = Load(num_requests, prompt, output, seed, _file(requests), levels, tuple(rate or ()), burst, replay)
    targets = Targets(ttft_target_ms, itl_target_ms)

    def save(bouts: Sequence[Bout]) -> None:
        """After every level, so that a run that is cut short leaves those that ended."""
        if json is not None:
            json.write_bytes(as_json(context.params, _summaries(bouts, targets), targets))

    peers = _peers(against or (), _fields(against_fields))
    with told(address):
        bouts = asyncio.run(_fight(address, peers, wanted, (turns, warm_up), save))
    if plots is not None and draw is not None:
        plots.mkdir(parents=True, exist_ok=True)
        draw(bouts, targets, plots)
    summaries = _summaries(bouts, targets)
    show(summaries, targets)
    save(bouts)
    raise typer.Exit(FAILED if any(summary.failures for summary in summaries.values()) else 0)


def _summaries(bouts: Sequence[Bout], targets: Targets) -> dict[tuple[str, str], Summary]:
    return {(bout.level, bout.target): bout.summary(targets) for bout in bouts}


async def _fight(
    address: str, peers: Peers, wanted: Load, counts: tuple[int, int], save: Callable[[Sequence[Bout]], None]
) -> list[Bout]:
    """save is called with what there is by then."""
    num_turns, num_warm_up = counts
    console = Console(stderr=True)
    async with _open(address, peers) as (servers, vocab_size):
        warm = generate(num_warm_up, wanted.prompt, Lengths(8, 8), vocab_size, wanted.seed + load_knobs.MAX_TURNS**2)
        if warm:
            level = Level("warm-up", lambda _: warm, min(len(warm), 4))
            async for _ in fight(servers, [level], 1):
                pass
        bouts: list[Bout] = []
        with console.status("under load"):
            async for bout in fight(servers, wanted.levels(vocab_size), num_turns):
                bouts.append(bout)
                save(bouts)
        return bouts


@asynccontextmanager
async def _open(address: str, peers: Peers) -> AsyncIterator[tuple[dict[str, Target], int]]:
    """Every server by name, and the size of the vocabulary that prompts are drawn from: that of our own."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(address, retries=NO_RETRIES))
        model = await client.wait_until_ready(READY_S)
        servers: dict[str, Target] = {OWN: TandemTarget(client)}
        if peers:
            completions = _completions()
            session = await stack.enter_async_context(completions.open_session())
            for name, (url, fields) in peers.items():
                servers[name] = completions.CompletionsTarget(session, url, fields)
        yield servers, model.vocab_size


def _lengths(text: str, option: str) -> Lengths:
    least, _, most = text.partition("-")
    try:
        lengths = Lengths(int(least), int(most or least))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is neither N nor LEAST-MOST", param_hint=option) from error
    if not 1 <= lengths.least <= lengths.most:
        raise typer.BadParameter(f"{text!r} must rise from at least 1", param_hint=option)
    return lengths


def _file(path: Path | None) -> tuple[Demand, ...] | None:
    try:
        return None if path is None else read(path)
    except (WorkloadError, OSError) as error:
        raise typer.BadParameter(str(error), param_hint="--requests") from error


def _fields(text: str) -> Mapping[str, object]:
    try:
        fields = json_text.loads(text)
    except json_text.JSONDecodeError as error:
        raise typer.BadParameter(str(error), param_hint="--against-fields") from error
    if not isinstance(fields, dict):
        raise typer.BadParameter("is no JSON object", param_hint="--against-fields")
    return fields


def _peers(values: Sequence[str], fields: Mapping[str, object]) -> Peers:
    """By name: what stands before the =, or the address."""
    peers = {}
    for value in values:
        name, is_named, url = value.partition("=")
        if not is_named:
            name, url = value.split("//")[-1].split("/")[0], value
        if not url.startswith(("http://", "https://")):
            raise typer.BadParameter(f"{url!r} is no http address", param_hint="--against")
        if name in peers or name == OWN:
            raise typer.BadParameter(f"{name!r} is taken", param_hint="--against")
        peers[name] = url, fields
    return peers


def _drawing() -> Any:
    """The one function that needs matplotlib, which is heavy and optional."""
    try:
        from tandem.cli.load_plots import draw  # noqa: PLC0415
    except ImportError as error:
        raise _missing("--plots needs matplotlib", error) from error
    return draw


def _completions() -> Any:
    """The one module that needs aiohttp, which is optional."""
    try:
        from tandem.load import completions_target  # noqa: PLC0415
    except ImportError as error:
        raise _missing("--against needs aiohttp", error) from error
    return completions_target


def _missing(what: str, error: ImportError) -> typer.Exit:
    typer.echo(f"tandem bench: {what}, the extra `bench` of this package ({error})", err=True)
    return typer.Exit(BAD_INPUT)
