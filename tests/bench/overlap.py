"""How much of the time the device waits for the scheduler, with overlap and without.

A simulated device of 5 ms a step in a real executor process; the scheduler's shell in this process, over the real
links; a third process submits requests at the Submit link and takes tokens in as the detokenizer would. The idle time
before step N+1 is max(0, launched(N+1) - done(N)) on the device's own clock. Depth 1 is the ablation.
"""

import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from services.runtime.settings import (
    ExecutorSettings,
    LinkSettings,
    SchedulerSettings,
    ServerSettings,
    temporary_root,
)
from services.scheduler.service import SchedulerLinks, SchedulerService
from services.wire.links import Poller, ZmqInlet, open_inlet, open_outlet
from services.wire.liveness import Heart
from services.wire.messages import ResultMessage, StepResult
from services.wire.topology import FEEDBACK, PLAN, RESULT, STATUS, SUBMIT, TOKENS, Topology

STEP_US = 5000.0
NUM_ROWS = 64
NUM_STEPS = 400
NUM_WARM_UP = 40  # steps in which the rows are still joining
DEADLINE_S = 60.0


class RecordingInlet:
    """The result inlet, which keeps the times of every step that passes through it."""

    def __init__(self, inlet: ZmqInlet[ResultMessage]) -> None:
        self._inlet = inlet
        self.results: list[StepResult] = []

    def receive(self) -> list[ResultMessage]:
        messages = self._inlet.receive()
        self.results.extend(message for message in messages if isinstance(message, StepResult))
        return messages

    def last_heard(self) -> Mapping[int, float]:
        return self._inlet.last_heard()

    def close(self) -> None:
        self._inlet.close()


def idle_share(results: list[StepResult]) -> float:
    """Idle time between consecutive steps over the whole time from the first launch to the last end."""
    steps = results[NUM_WARM_UP:NUM_STEPS]
    idle = sum(max(0, after.t_launched - before.t_done) for before, after in itertools.pairwise(steps))
    return idle / (steps[-1].t_done - steps[0].t_launched)


def measure(depth: int) -> dict[str, float]:
    """Run NUM_STEPS steps of NUM_ROWS decode rows at one depth."""
    with tempfile.TemporaryDirectory(prefix="tandem-bench-", dir=temporary_root()) as run_dir:
        settings = ServerSettings(
            links=LinkSettings(run_dir=run_dir),
            scheduler=SchedulerSettings(depth=depth, max_num_seqs=NUM_ROWS),
            executor=ExecutorSettings(backend="simulated", num_blocks=8192, max_rows=NUM_ROWS, step_fixed_us=STEP_US),
        )
        path = Path(run_dir, "settings.json")
        path.write_bytes(msgspec.json.encode(settings))
        driver = [sys.executable, "-m", "tests.bench.overlap_driver", run_dir, str(NUM_ROWS), str(NUM_STEPS + 50)]
        executor = [sys.executable, "-m", "services.executor", "--settings", str(path)]
        processes = [subprocess.Popen(command) for command in (executor, driver)]
        try:
            results = _schedule(settings)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    span = results[NUM_STEPS - 1].t_done - results[NUM_WARM_UP].t_launched
    return {"idle_share": idle_share(results), "step_ms": span / (NUM_STEPS - NUM_WARM_UP) / 1e6}


def _schedule(settings: ServerSettings) -> list[StepResult]:
    at = settings.links
    topology = Topology(at.transport, at.run_dir, at.host, at.base_port, at.gateways)
    submit = open_inlet(SUBMIT, topology.address(SUBMIT))
    result = open_inlet(RESULT, topology.address(RESULT))
    feedback = open_inlet(FEEDBACK, topology.address(FEEDBACK))
    recording = RecordingInlet(result)
    gateway = at.gateways[0]
    links = SchedulerLinks(
        submit=submit,
        result=recording,
        feedback=feedback,
        plan=open_outlet(PLAN, topology.address(PLAN), at.high_water_mark),
        tokens=open_outlet(TOKENS, topology.address(TOKENS), at.high_water_mark),
        status={gateway: open_outlet(STATUS, topology.address(STATUS, gateway), at.high_water_mark)},
    )
    service = SchedulerService(settings.scheduler, links, time.monotonic_ns)
    poller = Poller(submit, result, feedback)
    heart = Heart(links.outlets(), at.heartbeat_s)
    give_up = time.monotonic() + DEADLINE_S
    try:
        while len(recording.results) < NUM_STEPS:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{len(recording.results)} steps of {NUM_STEPS} in {DEADLINE_S} s")
            heart.beat(time.monotonic())
            service.turn()
            poller.wait(0.5)
    finally:
        poller.close()
        for inlet in (submit, result, feedback):
            inlet.close()
        for outlet in links.outlets():
            outlet.close()
    return recording.results


def run() -> dict[str, object]:
    """Idle share at depth 2 and 1."""
    return {f"depth_{depth}": measure(depth) for depth in (2, 1)}
