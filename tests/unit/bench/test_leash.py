"""A leashed command, and what it started, ends with whoever holds the leash, whatever that one dies of."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.processes import ROOT

PATIENCE_S = 30.0

# Starts one process in a session of its own that will not be asked, and waits.
COMMAND = """
import os, signal, subprocess, sys, time
from pathlib import Path
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
worker = subprocess.Popen([sys.executable, "-c", child], start_new_session=True, stdout=subprocess.PIPE)
worker.stdout.readline()
Path(sys.argv[1]).write_text(f"{os.getpid()} {worker.pid}\\n")
time.sleep(600)
"""

HOLDER = """
import os, sys, time
from tests.bench.peers.leash import held
with open(os.devnull, "wb") as log, held([sys.executable, "-c", sys.argv[1], sys.argv[2]], log, dict(os.environ)):
    time.sleep(float(sys.argv[3]))
"""


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """Where the command tells its process ids; none of them outlives a test."""
    path = tmp_path / "pids"
    yield path
    for pid in read(path):
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def read(path: Path) -> list[int]:
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def hold(pids: Path, seconds: float) -> "subprocess.Popen[bytes]":
    program = [sys.executable, "-c", HOLDER, COMMAND, str(pids), str(seconds)]
    return subprocess.Popen(program, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)


def wait_until(pids: Path, is_alive: bool) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := read(pids)) or any(psutil.pid_exists(pid) is not is_alive for pid in found):
        assert time.monotonic() < deadline, f"{found} should {'live' if is_alive else 'have ended'}"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_whatever_ends_the_holder(number: signal.Signals, pids: Path) -> None:
    with hold(pids, 600) as holder:
        wait_until(pids, is_alive=True)
        holder.send_signal(number)
    wait_until(pids, is_alive=False)


def test_the_end_of_the_block(pids: Path) -> None:
    with hold(pids, 1.0) as holder:
        wait_until(pids, is_alive=True)
    assert holder.returncode == 0
    wait_until(pids, is_alive=False)
