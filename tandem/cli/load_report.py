"""What `tandem bench` says of a run: a table for people, JSON for programs."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from tandem.load.duel import ratios
from tandem.load.summary import Spread, Summary, Targets

OWN = "tandem"  # what our own server is called beside others
MIN_WIDTH = 120  # where the width is not known, as in a pipe
SPREADS = ("TTFT", "ITL", "TPOT", "e2e")
OUTPUTS = ("json", "plots")  # arguments that say where figures go; they lead to none

Summaries = Mapping[tuple[str, str], Summary]  # by load and server


def show(summaries: Summaries, targets: Targets) -> None:
    """Print the table, the failures by status, and our throughput over each other server's."""
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    console.print(f"Good: the first token within {targets.ttft_ms:g} ms, 99 of 100 gaps within {targets.itl_ms:g} ms.")
    table = Table(box=None, pad_edge=False)
    table.add_column("load", no_wrap=True)
    table.add_column("server", no_wrap=True)
    spreads = [f"{name}, ms\np50/p90/p99" for name in SPREADS]
    for name in ("output\ntok/s", "input\ntok/s", *spreads, "good", "failed"):
        table.add_column(name, justify="right")
    for (level, target), summary in summaries.items():
        table.add_row(level, target, *_cells(summary))
    console.print(table)
    for (level, target), summary in summaries.items():
        for status, count in summary.failures.items():
            console.print(f"{level}, {target}: {count} x {status}")
    for level, row in ratios(summaries, OWN).items():
        console.print(f"{level}: " + ", ".join(f"{ratio:.2f} x {name}" for name, ratio in row.items()))


def _cells(summary: Summary) -> list[str]:
    return [
        f"{summary.output_tokens_per_s:.1f}",
        f"{summary.input_tokens_per_s:.1f}",
        _spread(summary.ttft_ms),
        _spread(summary.itl_ms),
        _spread(summary.tpot_ms),
        _spread(summary.e2e_ms),
        f"{summary.good_share:.0%}",
        f"{summary.num_calls - summary.num_ok}",
    ]


def _spread(spread: Spread) -> str:
    return "/".join(f"{value:.1f}" if value < 100 else f"{value:.0f}" for value in msgspec.structs.astuple(spread))


def as_json(arguments: Mapping[str, object], summaries: Summaries, targets: Targets) -> bytes:
    """Every number, and the arguments that led to it."""
    whole = {
        "arguments": {
            name: str(value) if isinstance(value, Path) else value
            for name, value in arguments.items()
            if name not in OUTPUTS
        },
        "targets": targets,
        "results": [
            {"load": level, "server": target, **msgspec.structs.asdict(summary)}
            for (level, target), summary in summaries.items()
        ],
        "ratios": ratios(summaries, OWN),
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"
