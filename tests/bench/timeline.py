"""Five consecutive decode steps, drawn: when each plan reached the executor, and when the device ran it.

Usage: python -m tests.bench.timeline PATH.svg   (needs matplotlib)
"""

import sys

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from services.runtime import logs
from services.wire.messages import StepResult
from tests.bench.overlap import Setup, trace

NUM_STEPS = 5
FIRST = 100  # a step of steady decode
SETUPS = {"depth 2": Setup(2, 64, 5000.0, 200), "depth 1": Setup(1, 64, 5000.0, 200)}


def draw(path: str) -> None:
    """One lane for each depth: bars are steps on the device, marks are the arrivals of their plans."""
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes = figure.subplots()
    for lane, setup in enumerate(SETUPS.values()):
        _draw_lane(axes, lane, trace(setup).figure[FIRST : FIRST + NUM_STEPS])
    axes.set_yticks(range(len(SETUPS)), list(SETUPS))
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds on the device's clock; bar: a step runs; mark: its plan arrives")
    figure.savefig(path)


def _draw_lane(axes: Axes, lane: int, steps: list[StepResult]) -> None:
    start = steps[0].t_launched
    for index, step in enumerate(steps):
        left, width = (step.t_launched - start) / 1e6, (step.t_done - step.t_launched) / 1e6
        axes.barh(lane, width, left=left, height=0.5, color=("#4477aa", "#88aacc")[index % 2])
        axes.plot((step.t_received - start) / 1e6, lane - 0.36, marker="v", color="#cc6677")


if __name__ == "__main__":
    logs.configure("bench", "warning")
    draw(sys.argv[1])
