"""`tandem bench policies`: the scheduler itself in virtual time, which needs no server.

Exit codes: 0, or 2 when plots are asked for and matplotlib is not installed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from services.scheduler.virtual.device import LLAMA_8B
from services.scheduler.virtual.metrics import Latencies, Summary
from services.scheduler.virtual.scenarios import SCENARIOS, TARGETS, Outcome, Scenario
from tandem.cli.failures import BAD_INPUT

Results = Sequence[tuple[Scenario, Sequence[Outcome]]]


COLUMNS = (
    "output\ntok/s",
    "TTFT, ms\np50 / p99",
    "ITL, ms\np50 / p99",
    "slots\nidle",
    "while work\nwaits",
    "pre-\nempted",
    "computed\ntwice",
    "good\n/s",
)
MIN_WIDTH = 120  # where the width is not known, as in a pipe


def policies(
    seed: Annotated[int, typer.Option(min=0, help="Seed of the workloads; the same gives the same numbers.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="One scenario, by name; may be repeated.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write every number to this file.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Draw into this folder (needs the extra `bench`).")] = None,
) -> None:
    """Run the scheduler's policies side by side, in virtual time, on a device that only counts."""
    draw = _drawing() if plots is not None else None
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    ttft, itl = TARGETS.ttft_ms / 1000, TARGETS.itl_ms
    console.print(
        f"Device: {LLAMA_8B.name}. Good: the first token within {ttft:.0f} s, 99 of 100 gaps in {itl:.0f} ms."
    )
    results = []
    for scenario in _chosen(only):
        with console.status(scenario.title):
            outcomes = list(scenario.run(seed))
        console.print(_table(scenario.title, outcomes))
        results.append((scenario, outcomes))
    if json is not None:
        json.write_bytes(_as_json(seed, results))
    if plots is not None and draw is not None:
        plots.mkdir(parents=True, exist_ok=True)
        for scenario, outcomes in results:
            draw(scenario.name, scenario.title, outcomes, plots)


def _drawing() -> Any:
    """The one function that needs matplotlib, which is heavy and optional."""
    try:
        from tandem.cli.bench_plots import draw  # noqa: PLC0415
    except ImportError as error:
        typer.echo(f"tandem bench: --plots needs matplotlib, the extra `bench` of this package ({error})", err=True)
        raise typer.Exit(BAD_INPUT) from error
    return draw


def _chosen(names: list[str] | None) -> list[Scenario]:
    known = {scenario.name: scenario for scenario in SCENARIOS}
    for name in names or ():
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint="--only")
    return [scenario for scenario in SCENARIOS if not names or scenario.name in names]


def _table(title: str, outcomes: Sequence[Outcome]) -> Table:
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for outcome in outcomes:
        summary = outcome.summary
        table.add_row(outcome.label, *_latencies(summary.all), *_rest(summary))
        if len(summary.tenants) > 1:
            for name, latencies in summary.tenants.items():
                table.add_row(f"  {name}", *_latencies(latencies), style="dim")
    return table


def _latencies(latencies: Latencies) -> Iterator[str]:
    yield f"{latencies.output_tokens_per_s:.0f}"
    yield f"{latencies.ttft_p50_ms:.0f} / {latencies.ttft_p99_ms:.0f}"
    yield f"{latencies.itl_p50_ms:.1f} / {latencies.itl_p99_ms:.1f}"


def _rest(summary: Summary) -> Iterator[str]:
    yield f"{summary.idle_share:.1%}"
    yield f"{summary.idle_while_waiting_share:.1%}"
    yield f"{summary.num_preemptions}"
    yield f"{summary.recomputed_share:.1%}"
    yield f"{summary.goodput_per_s:.2f}"


def _as_json(seed: int, results: Results) -> bytes:
    scenarios = [
        {
            "name": scenario.name,
            "title": scenario.title,
            "runs": [{"label": outcome.label, **msgspec.structs.asdict(outcome.summary)} for outcome in outcomes],
        }
        for scenario, outcomes in results
    ]
    whole = {"seed": seed, "device": LLAMA_8B, "targets": TARGETS, "scenarios": scenarios}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"
