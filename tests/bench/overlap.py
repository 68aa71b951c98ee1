"""How much of the time the device waits for the host, with overlap and without, with the detokenizer beside or in line.

A pretended device in a real executor process (its model echoes: one that hashes would take processor time that no
device takes); the scheduler's shell in this process, over the real links; another process submits requests at the
Submit link. The idle time before step N+1 is max(0, launched(N+1) - done(N)) on the
device's own clock. Depth 1 is the ablation of overlap; a detokenizer that takes its turn in the scheduler's loop is the
ablation of asynchronous output. Beside each figure stands what others took of the processors meanwhile (others.py).
"""

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from services.detokenizer.__main__ import tables_of
from services.detokenizer.service import DetokenizerService
from services.detokenizer.streams import Streams
from services.runtime import logs, process
from services.runtime.collector import keep_loaded
from services.runtime.models import resolve
from services.runtime.settings import (
    ExecutorSettings,
    LinkSettings,
    ModelSettings,
    SchedulerSettings,
    ServerSettings,
    temporary_root,
)
from services.scheduler.service import SchedulerLinks, SchedulerService
from services.tokenizer import load
from services.wire.link import Inlet, Outlet
from services.wire.links import Poller, ZmqInlet, open_inlet, open_outlet, open_renewable_outlet
from services.wire.liveness import Heart
from services.wire.memory import memory_link
from services.wire.messages import FeedbackMessage, ResultMessage, StepResult, TokenMessage
from services.wire.topology import FEEDBACK, PLAN, RESULT, STATUS, SUBMIT, TEXT, TOKENS, Topology
from tests.bench import others

NUM_WARM_UP = 40  # steps in which the rows are still joining
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Setup:
    """One run: depth of the window, decode rows, the device's step, and where the detokenizer runs."""

    depth: int
    num_rows: int
    step_us: float
    num_steps: int = 300
    is_in_line: bool = False


class RecordingInlet:
    """The result inlet, which keeps the times of every step that passes through it."""

    def __init__(self, inlet: ZmqInlet[ResultMessage], on_warm: Callable[[], None]) -> None:
        self._inlet = inlet
        self._on_warm = on_warm
        self.results: list[StepResult] = []

    def receive(self) -> list[ResultMessage]:
        messages = self._inlet.receive()
        was_warm = len(self.results) >= NUM_WARM_UP
        self.results.extend(message for message in messages if isinstance(message, StepResult))
        if len(self.results) >= NUM_WARM_UP and not was_warm:
            self._on_warm()
        return messages

    def last_heard(self) -> Mapping[int, float]:
        return self._inlet.last_heard()

    def forget(self, sender: int) -> None:
        self._inlet.forget(sender)

    def close(self) -> None:
        self._inlet.close()


@dataclass(frozen=True)
class Figures:
    """Of the steps after the warm-up."""

    idle_share: float
    step_ms: float


def measure(setup: Setup) -> others.Window[Figures]:
    """Idle share of the device and milliseconds a step, the warm-up left out."""
    window = trace(setup)
    steps = window.figure[NUM_WARM_UP : setup.num_steps]
    idle = sum(max(0, after.t_launched - before.t_done) for before, after in itertools.pairwise(steps))
    span = steps[-1].t_done - steps[0].t_launched
    return others.Window(Figures(idle / span, span / len(steps) / 1e6), window.others_share)


def trace(setup: Setup) -> others.Window[list[StepResult]]:
    """Run one setup; its results in order, and what others took after the warm-up."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=temporary_root()) as run_dir:
        settings = ServerSettings(
            links=LinkSettings(run_dir=run_dir),
            scheduler=SchedulerSettings(depth=setup.depth, max_num_seqs=setup.num_rows),
            executor=ExecutorSettings(
                backend="echo", num_blocks=8192, max_rows=setup.num_rows, step_fixed_us=setup.step_us
            ),
            log_level="warning",
        )
        path = Path(run_dir, "settings.json")
        path.write_bytes(msgspec.json.encode(settings))
        commands = [
            [sys.executable, "-m", "services.executor", "--settings", str(path)],
            [
                sys.executable,
                "-m",
                "tests.bench.overlap_driver",
                run_dir,
                str(setup.num_rows),
                str(setup.num_steps + 60),
            ],
        ]
        if not setup.is_in_line:
            commands.append([sys.executable, "-m", "services.detokenizer", "--settings", str(path)])
        processes = [subprocess.Popen(command) for command in commands]
        try:
            return _schedule(settings, setup, [process.pid for process in processes])
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _schedule(settings: ServerSettings, setup: Setup, process_ids: list[int]) -> others.Window[list[StepResult]]:
    at = settings.links
    topology = process.topology(at)
    gateway = at.gateways[0]
    submit = open_inlet(SUBMIT, topology.bound_address(SUBMIT))
    result = open_inlet(RESULT, topology.bound_address(RESULT))
    readings: list[others.Reading] = []
    recording = RecordingInlet(result, lambda: readings.append(others.read(process_ids)))
    if setup.is_in_line:
        tokens, feedback, detokenize = _detokenizer_in_line(topology, gateway, at.high_water_mark)
        waited: tuple[ZmqInlet[Any], ...] = (submit, result)
    else:
        zmq_feedback = open_inlet(FEEDBACK, topology.bound_address(FEEDBACK))
        tokens, feedback = open_outlet(TOKENS, topology.address(TOKENS), at.high_water_mark), zmq_feedback
        detokenize = _nothing
        waited = (submit, result, zmq_feedback)
    links = SchedulerLinks(
        submit=submit,
        result=recording,
        feedback=feedback,
        plan=open_renewable_outlet(PLAN, topology.address(PLAN), at.high_water_mark),
        tokens=tokens,
        status={gateway: open_outlet(STATUS, topology.address(STATUS, gateway), at.high_water_mark)},
    )
    service = SchedulerService(settings.scheduler, links, time.monotonic_ns)
    poller = Poller(*waited)
    keep_loaded()
    heart = Heart(links.outlets(), at.heartbeat_s)
    give_up = time.monotonic() + DEADLINE_S
    try:
        while len(recording.results) < setup.num_steps:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{len(recording.results)} steps of {setup.num_steps} in {DEADLINE_S} s")
            heart.beat(time.monotonic())
            service.turn()
            detokenize()
            poller.wait(0.5)
        readings.append(others.read(process_ids))
    finally:
        poller.close()
        for inlet in waited:
            inlet.close()
        for outlet in links.outlets():
            outlet.close()
    return others.Window(recording.results, others.share_of_others(*readings))


def _detokenizer_in_line(
    topology: Topology, gateway: str, high_water_mark: int
) -> tuple[Outlet[TokenMessage], Inlet[FeedbackMessage], Callable[[], None]]:
    """A detokenizer over memory links, and its turn."""
    streams = Streams(tables_of(load(resolve(ModelSettings()))))
    to_tokens, tokens = memory_link(TOKENS, high_water_mark)
    to_feedback, feedback = memory_link(FEEDBACK, high_water_mark)
    texts = {gateway: open_outlet(TEXT, topology.address(TEXT, gateway), high_water_mark)}
    service = DetokenizerService(streams, tokens, texts, to_feedback, 256)
    texts[gateway].heartbeat()  # the sign of life that a process of its own would give
    return to_tokens, feedback, service.turn


def _nothing() -> None:
    """The detokenizer has a process of its own."""


def run() -> dict[str, object]:
    """Idle shares, the gain of depth 2 over depth 1 by rows and step, and that of the detokenizer's own process."""
    logs.configure("bench", "error")  # a scheduler that its bench leaves alone would warn
    figures: dict[str, object] = {}
    for step_us, num_steps in ((2000.0, 1000), (5000.0, 400)):
        for depth in (2, 1):
            name = f"idle_64_rows_{step_us / 1000:.0f}_ms_depth_{depth}"
            figures[name] = _idle(Setup(depth, 64, step_us, num_steps))
    for step_us, num_steps in ((1000.0, 400), (5000.0, 240), (20000.0, 120)):
        for num_rows in (1, 8, 64):
            setups = (Setup(depth, num_rows, step_us, num_steps) for depth in (1, 2))
            figures[f"gain_of_depth_2_{num_rows}_rows_{step_us / 1000:.0f}_ms"] = _gain(*setups)
    for depth in (1, 2):
        setups = (Setup(depth, 64, 1000.0, 400, is_in_line) for is_in_line in (True, False))
        figures[f"gain_of_own_detokenizer_64_rows_1_ms_depth_{depth}"] = _gain(*setups)
    return figures


def _idle(setup: Setup) -> dict[str, float]:
    """The median of three windows."""
    windows = _least_disturbed(setup, 3)
    shares = [window.figure.idle_share for window in windows]
    return {
        "idle_share": statistics.median(shares),
        "least": min(shares),
        "most": max(shares),
        "others_share": max(window.others_share for window in windows),
    }


def _gain(slow: Setup, fast: Setup) -> dict[str, float]:
    """How many times the steps a second that `slow` makes `fast` makes; medians of three windows each."""
    before, after = _least_disturbed(slow, 3), _least_disturbed(fast, 3)
    slow_ms, fast_ms = (statistics.median(window.figure.step_ms for window in each) for each in (before, after))
    return {"gain": slow_ms / fast_ms, "others_share": max(window.others_share for window in (*before, *after))}


def _least_disturbed(setup: Setup, wanted: int) -> list[others.Window[Figures]]:
    return others.least_disturbed(lambda: measure(setup), wanted)
