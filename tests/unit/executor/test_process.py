"""The executor as a process of its own: ready, serves over sockets, leaves on SIGTERM; only its model needs torch."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from services.runtime.settings import ExecutorSettings, LinkSettings, ServerSettings
from services.wire.links import open_inlet, open_outlet
from services.wire.messages import Hello, Ready, ResultMessage, StepResult
from services.wire.topology import PLAN, RESULT, Topology
from tests.unit.executor.rig import Row, append, init, plan, tokens_of

PATIENCE_S = 30.0


@pytest.mark.parametrize("backend", ["echo", "simulated"])
def test_it_serves_and_leaves(tmp_path: Path, backend: str) -> None:
    run_dir = str(tmp_path)
    settings = ServerSettings(
        links=LinkSettings(run_dir=run_dir),
        executor=msgspec.convert({"backend": backend, "num_blocks": 20, "max_rows": 4}, ExecutorSettings),
    )
    path = tmp_path / "settings.json"
    path.write_bytes(msgspec.json.encode(settings))
    topology = Topology("ipc", run_dir, "", 1, settings.links.gateways)
    results = open_inlet(RESULT, topology.address(RESULT))
    plans = open_outlet(PLAN, topology.address(PLAN), 100)
    process = subprocess.Popen([sys.executable, "-m", "services.executor", "--settings", str(path)])
    try:
        for message in (Hello(1), plan(1, [init(1, 2), append(1, [1])], [Row(1, 0, [11, 12])]), plan(2)):
            plans.send(message)
        received: list[ResultMessage] = []
        until = time.monotonic() + PATIENCE_S
        while len(received) < 4 and time.monotonic() < until and process.poll() is None:
            received.extend(results.receive())
            time.sleep(0.005)
        opening, ready, first, second = received
        assert isinstance(opening, Ready) and isinstance(ready, Ready)
        assert opening.instance == ready.instance > 0
        assert opening.card.backend == backend and (opening.num_blocks, opening.max_rows) == (20, 4)
        assert isinstance(first, StepResult) and isinstance(second, StepResult)
        assert len(tokens_of(first)) == len(tokens_of(second)) == 1
        if backend == "echo":
            assert (tokens_of(first), tokens_of(second)) == ([11], [12])
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        plans.close()
        results.close()


def test_backends_without_a_model_do_without_torch() -> None:
    code = "import sys, services.executor.__main__; sys.exit('torch' in sys.modules or 'gguf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
