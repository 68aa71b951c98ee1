"""The life of a service process, watched from outside: signals, exit codes, logs, and death with the parent."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.runtime.lifecycle import Stop

PATIENCE_S = 20.0

# A service that says when its signal handlers stand, then waits until it is stopped and says how.
WAITS = """
import time
from services.runtime.lifecycle import run
def body(settings, stop):
    stop.on_set(lambda: None)
    print("up", flush=True)
    while stop.kind != "{until}":
        time.sleep(0.005)
    print(stop.kind, flush=True)
run("actor", body)
"""
STARTS = """
import time
from services.runtime.lifecycle import run
def body(settings, stop):
    print("up", flush=True)
    time.sleep(3600)
run("actor", body)
"""
STUBBORN = WAITS.format(until="never")
FAILS = """
from services.runtime.lifecycle import run
def body(settings, stop):
    raise ValueError(f"depth is {settings.scheduler.depth}")
run("actor", body)
"""
LEAVES_A_THREAD = """
import threading, time
from services.runtime.lifecycle import run
def body(settings, stop):
    threading.Thread(target=time.sleep, args=(3600,)).start()
    raise ValueError("with a thread at work")
run("actor", body)
"""


@contextmanager
def _actor(program: str, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    settings = folder / "settings.json"
    settings.write_text('{"scheduler": {"depth": 3}}')
    command = [sys.executable, "-c", program, "--settings", str(settings), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_up(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"


def _end(process: subprocess.Popen[str]) -> tuple[int, str, list[dict[str, Any]]]:
    """Exit code, what it printed, and its log."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, [json.loads(line) for line in err.splitlines()]


def test_a_service_that_still_starts_ends_at_the_first_signal(tmp_path: Path) -> None:
    with _actor(STARTS, tmp_path) as process:
        _wait_up(process)
        process.send_signal(signal.SIGTERM)
        code, out, log = _end(process)
    assert (code, out) == (0, "")
    assert [line["event"] for line in log] == ["service.starting"]


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGTERM, "drain"), (signal.SIGUSR1, "engine_dead")])
def test_a_signal_stops_the_body_which_learns_why(tmp_path: Path, number: signal.Signals, kind: str) -> None:
    with _actor(WAITS.format(until=kind), tmp_path) as process:
        _wait_up(process)
        process.send_signal(number)
        code, out, log = _end(process)
    assert (code, out) == (0, f"{kind}\n")
    assert [line["event"] for line in log] == ["service.starting", "service.stopped"]
    assert {line["service"] for line in log} == {"actor"}
    assert log[-1]["kind"] == kind


def test_a_drain_can_still_turn_into_an_abort(tmp_path: Path) -> None:
    with _actor(WAITS.format(until="engine_dead"), tmp_path) as process:
        _wait_up(process)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGUSR1)
        code, out, _ = _end(process)
    assert (code, out) == (0, "engine_dead\n")


def test_an_interrupt_is_ignored(tmp_path: Path) -> None:
    with _actor(WAITS.format(until="drain"), tmp_path) as process:
        _wait_up(process)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert _end(process)[0] == 0


def test_a_second_request_to_stop_ends_a_stubborn_process_at_once(tmp_path: Path) -> None:
    with _actor(STUBBORN, tmp_path) as process:
        _wait_up(process)
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:  # the first may still be on its way when the next is sent: they are one then
            process.send_signal(signal.SIGTERM)
            time.sleep(0.01)
        assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("program", "error"),
    [(FAILS, "ValueError: depth is 3"), (LEAVES_A_THREAD, "ValueError: with a thread at work")],
)
def test_an_exception_is_logged_with_its_cause_and_ends_the_process(tmp_path: Path, program: str, error: str) -> None:
    with _actor(program, tmp_path) as process:
        code, _, log = _end(process)
    assert code == 1
    assert (log[-1]["event"], log[-1]["level"], log[-1]["error"]) == ("service.failed", "error", error)
    assert "Traceback" in log[-1]["exception"]


def test_a_process_dies_with_the_parent_that_started_it(tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text("{}")
    parent = (
        "import os, subprocess, sys\n"
        f"command = [sys.executable, '-c', {STUBBORN!r}, '--settings', {str(settings)!r}]\n"
        "command += ['--parent', str(os.getpid())]\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "child.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        process.kill()
    deadline = time.monotonic() + PATIENCE_S
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.01)


def test_a_process_whose_parent_is_gone_already_does_not_start(tmp_path: Path) -> None:
    with _actor(STUBBORN, tmp_path, "--parent", str(os.getpid() + 1)) as process:
        code, out, log = _end(process)
    assert (code, out, log) == (1, "", [])


def test_callbacks_run_at_every_change_of_kind() -> None:
    stop, seen = Stop(), list[str]()
    stop.on_set(lambda: seen.append(stop.kind))
    assert not stop.is_set
    for _ in range(2):
        stop.set("drain")
    stop.on_set(lambda: seen.append("late"))
    stop.set("engine_dead")
    stop.set("drain")
    assert seen == ["drain", "late", "engine_dead", "late"]
    assert (stop.is_set, stop.kind) == (True, "engine_dead")
