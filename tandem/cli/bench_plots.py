"""The pictures of `tandem bench policies`, one file for each scenario. The only module that imports matplotlib."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from services.scheduler.virtual.metrics import NS_PER_MS
from services.scheduler.virtual.scenarios import Outcome

# Text stays text, and nothing in a file differs from one drawing to the next.
matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "tandem"}
METADATA = {"Date": None, "Creator": None}

Outcomes = Sequence[Outcome]


def draw(name: str, title: str, outcomes: Outcomes, folder: Path) -> None:
    """Draw one scenario into <folder>/<name>.svg."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    figure.suptitle(title)
    PICTURES[name](figure, outcomes)
    figure.savefig(folder / f"{name}.svg", metadata=METADATA)


def _batching(figure: Figure, outcomes: Outcomes) -> None:
    throughput, ttft, itl, idle = figure.subplots(1, 4)
    _bars(throughput, "output tokens/s", outcomes, {"": [o.summary.all.output_tokens_per_s for o in outcomes]})
    latencies = [outcome.summary.all for outcome in outcomes]
    _bars(
        ttft,
        "TTFT, ms",
        outcomes,
        {"p50": [x.ttft_p50_ms for x in latencies], "p99": [x.ttft_p99_ms for x in latencies]},
    )
    _bars(
        itl, "ITL, ms", outcomes, {"p50": [x.itl_p50_ms for x in latencies], "p99": [x.itl_p99_ms for x in latencies]}
    )
    ttft.set_yscale("log")
    itl.set_yscale("log")
    shares = {
        "all": [o.summary.idle_share for o in outcomes],
        "while work waits": [o.summary.idle_while_waiting_share for o in outcomes],
    }
    _bars(idle, "idle slot share", outcomes, shares)


def _textbook(figure: Figure, outcomes: Outcomes) -> None:
    for axes, outcome in zip(figure.subplots(1, len(outcomes), sharey=True), outcomes, strict=True):
        steps = outcome.journal.steps
        axes.stairs([step.num_rows for step in steps], fill=True)
        axes.set(title=f"{outcome.label}: {outcome.summary.idle_share:.0%} idle", xlabel="step", ylabel="rows")


def _tenants(figure: Figure, outcomes: Outcomes) -> None:
    quiet, flood = figure.subplots(1, 2)
    for axes, tenant in ((quiet, "quiet"), (flood, "flood")):
        ttfts = {o.label: [r.ttft_ns for r in o.journal.records if r.demand.tenant == tenant] for o in outcomes}
        _distribution(axes, f"time to first token, {tenant} tenant, ms", ttfts)


def _flood(figure: Figure, outcomes: Outcomes) -> None:
    gaps, ttfts = figure.subplots(1, 2)
    decoders = {
        o.label: [gap for r in o.journal.records if r.demand.tenant == "decoders" for gap in r.gaps] for o in outcomes
    }
    documents = {o.label: [r.ttft_ns for r in o.journal.records if r.demand.tenant == "documents"] for o in outcomes}
    _distribution(gaps, "inter-token latency of the decoders, ms", decoders)
    _distribution(ttfts, "time to first token of the documents, ms", documents)


def _preemption(figure: Figure, outcomes: Outcomes) -> None:
    duration, count, twice = figure.subplots(1, 3)
    _bars(duration, "seconds until all have ended", outcomes, {"": [o.summary.duration_s for o in outcomes]})
    _bars(count, "preemptions", outcomes, {"": [o.summary.num_preemptions for o in outcomes]})
    _bars(twice, "share of tokens computed twice", outcomes, {"": [o.summary.recomputed_share for o in outcomes]})


PICTURES: Mapping[str, Callable[[Figure, Outcomes], None]] = {
    "batching": _batching,
    "textbook": _textbook,
    "tenants": _tenants,
    "flood": _flood,
    "memory": _preemption,
    "storm": _preemption,
}


def _bars(axes: Axes, title: str, outcomes: Outcomes, groups: Mapping[str, Sequence[float]]) -> None:
    """A bar for each outcome in each group."""
    width = 0.8 / len(groups)
    for number, (name, values) in enumerate(groups.items()):
        axes.bar([place + number * width for place in range(len(values))], values, width, label=name)
    axes.set_title(title)
    ticks = [place + width * (len(groups) - 1) / 2 for place in range(len(outcomes))]
    labels = [outcome.label.replace(", ", "\n").replace("; ", "\n") for outcome in outcomes]
    axes.set_xticks(ticks, labels, rotation=90, fontsize=7)
    if len(groups) > 1:
        axes.legend(fontsize=7)


def _distribution(axes: Axes, title: str, values_ns: Mapping[str, Iterable[int]]) -> None:
    """For each name the share of its values up to x, on a logarithmic axis."""
    for name, values in values_ns.items():
        ordered = sorted(value / NS_PER_MS for value in values)
        if ordered:
            axes.plot(ordered, [(rank + 1) / len(ordered) for rank in range(len(ordered))], label=name)
    axes.set_xscale("log")
    axes.set_title(title)
    axes.legend(fontsize=7)
