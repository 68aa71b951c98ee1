"""The four services without a supervisor, as in containers: settings from the environment, tcp links with keys, health
checks as processes, an executor that is killed and started again."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tandem import Client
from tests.e2e.processes import ROOT
from tests.ports import free_ports

MODULES = {
    "scheduler": "services.scheduler",
    "executor": "services.executor",
    "detokenizer": "services.detokenizer",
    "gateway": "gateway",
}
PATIENCE_S = 60.0


class Fleet:
    """Every service in a process and a run directory of its own."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self._stack = root, stack
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._base_port = free_ports(7)

    def environment(self, service: str) -> dict[str, str]:
        run_dir = self.root / service
        run_dir.mkdir(exist_ok=True)
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TANDEM_LINKS_RUN_DIR": str(run_dir),
            "TANDEM_LINKS_TRANSPORT": "tcp",
            "TANDEM_LINKS_HOST": "localhost",
            "TANDEM_LINKS_BIND": "127.0.0.1",
            "TANDEM_LINKS_BASE_PORT": str(self._base_port),
            "TANDEM_LINKS_KEYS": str(self.root / "keys"),
            "TANDEM_LINKS_DEATH_S": "20",
            "TANDEM_EXECUTOR_BACKEND": "echo",
            "TANDEM_GATEWAY_LISTEN": "127.0.0.1:0",
        }

    def run(self, service: str, *command: str) -> int:
        """A short command beside a service; its exit code."""
        done = subprocess.run([sys.executable, *command], env=self.environment(service), cwd="/", check=False)
        return done.returncode

    def start(self, service: str) -> None:
        log = self._stack.enter_context((self.root / f"{service}.log").open("ab"))
        self.running[service] = subprocess.Popen(
            [sys.executable, "-m", MODULES[service]], env=self.environment(service), cwd="/", stdout=log, stderr=log
        )
        self._stack.callback(self.end, service)

    def end(self, service: str, how: signal.Signals = signal.SIGKILL) -> int:
        self.running[service].send_signal(how)
        return self.running[service].wait(PATIENCE_S)

    def is_healthy(self, service: str) -> bool:
        """The health check of its container."""
        check = ("gateway.probe",) if service == "gateway" else ("services.runtime.process", service)
        return self.run(service, "-m", *check) == 0

    def address(self) -> str:
        return (self.root / "gateway" / "gateway-0.listen").read_text()

    def wait(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            logs = {name: (self.root / f"{name}.log").read_text()[-800:] for name in self.running}
            assert time.monotonic() < deadline, logs
            time.sleep(0.1)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="t-") as root, ExitStack() as stack:
        yield Fleet(Path(root), stack)


def test_services_that_start_one_by_one_and_an_executor_that_comes_back(fleet: Fleet) -> None:
    assert fleet.run("scheduler", "-m", "services.runtime.link_keys", str(fleet.root / "keys")) == 0
    assert not fleet.is_healthy("scheduler") and not fleet.is_healthy("gateway"), "nobody is there yet"
    for service in MODULES:
        fleet.start(service)
    for service in MODULES:
        fleet.wait(partial(fleet.is_healthy, service))
    with Client(fleet.address()) as client:
        assert client.generate([5, 6, 7], max_tokens=3).usage.completion_tokens == 3
        fleet.end("executor")
        stream = client.stream_generate([5, 6, 7], max_tokens=40)
        fleet.start("executor")
        assert sum(chunk.num_tokens for chunk in stream) == 40
    assert fleet.is_healthy("gateway")
    codes = {name: fleet.end(name, signal.SIGTERM) for name in ("gateway", "detokenizer", "executor", "scheduler")}
    assert set(codes.values()) == {0}, codes


def test_settings_that_cannot_be_end_a_service_with_their_name(fleet: Fleet) -> None:
    environment = {**fleet.environment("scheduler"), "TANDEM_SCHEDULER_DEPTH": "9"}
    done = subprocess.run(
        [sys.executable, "-m", "services.scheduler"],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "scheduler.depth" in done.stderr
