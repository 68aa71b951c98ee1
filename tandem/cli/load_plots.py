"""The picture of `tandem bench`: throughput by load, and how first tokens and gaps are distributed at each."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tandem.load.duel import Bout
from tandem.load.summary import Targets

# Text stays text, and nothing in a file differs from one drawing of the same numbers to the next.
matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "tandem"}
METADATA = {"Date": None, "Creator": None}


def draw(bouts: Sequence[Bout], targets: Targets, folder: Path) -> None:
    """Draw <folder>/load.svg: a row of three for each load."""
    levels = list(dict.fromkeys(bout.level for bout in bouts))
    figure = Figure(figsize=(12, 3.2 * len(levels)), layout="constrained")
    rows = figure.subplots(len(levels), 3, squeeze=False)
    for level, (throughput, ttft, gaps) in zip(levels, rows, strict=True):
        own = [bout for bout in bouts if bout.level == level]
        throughput.barh([bout.target for bout in own], [bout.summary(targets).output_tokens_per_s for bout in own])
        throughput.set_title(f"{level}: output tokens/s")
        for bout in own:
            calls = [call for run in bout.runs for call in run if call.is_ok and call.times]
            _distribution(ttft, bout.target, (call.ttft for call in calls))
            _distribution(gaps, bout.target, (gap for call in calls for gap in call.gaps))
        _finish(ttft, "time to first token, ms", targets.ttft_ms)
        _finish(gaps, "inter-token latency, ms", targets.itl_ms)
    figure.savefig(folder / "load.svg", metadata=METADATA)


def _distribution(axes: Axes, name: str, seconds: Iterable[float]) -> None:
    """The share of the values up to x."""
    ordered = sorted(value * 1000 for value in seconds)
    if ordered:
        axes.plot(ordered, [(rank + 1) / len(ordered) for rank in range(len(ordered))], label=name)


def _finish(axes: Axes, title: str, target: float) -> None:
    axes.set_xscale("log")
    axes.axvline(target, linestyle=":", color="grey")
    axes.set_title(title)
    axes.legend(fontsize=7)
