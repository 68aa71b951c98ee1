"""A whole server behind the real command, and its log: `tandem serve` in a process of its own, gone at the end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem import Client, TandemError
from tests.e2e.processes import ROOT, Settings, toml

START_S = 60.0


@dataclass
class Serving:
    """A server that is ready; `log` holds its lines, one JSON object each."""

    address: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def entries(self, start: int = 0) -> list[dict[str, Any]]:
        """The log from a byte position on."""
        with self.log.open("rb") as log:
            log.seek(start)
            lines = log.read().splitlines()
        return [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]

    def position(self) -> int:
        """The end of the log by now."""
        return self.log.stat().st_size

    def pids(self) -> dict[str, int]:
        """The process of each service."""
        return {entry["service"]: entry["pid"] for entry in self.entries() if entry["event"] == "service.starting"}

    def idle(self, start: int) -> dict[str, Any]:
        """The first state of the engine, told after `start`, with nothing waiting and nothing running."""

        def is_idle(entry: dict[str, Any]) -> bool:
            return entry["event"] == "engine.load" and not entry["num_waiting"] + entry["num_running"]

        return self.told(is_idle, start)

    def told(self, is_it: Callable[[dict[str, Any]], bool], start: int = 0, within_s: float = 10.0) -> dict[str, Any]:
        """The first entry of the log after `start` that is it; waits for it."""
        deadline = time.monotonic() + within_s
        while True:
            for entry in self.entries(start):
                if is_it(entry):
                    return entry
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-5000:]
            time.sleep(0.05)


@contextmanager
def serving(folder: Path, settings: Settings) -> Iterator[Serving]:
    """A server with these settings, by section; folder: an empty one. It must end cleanly when the block is left."""
    config, log = folder / "tandem.toml", folder / "log"
    config.write_text(toml(settings))
    with log.open("wb") as out:
        command = [sys.executable, "-c", "from tandem.cli import main; main()"]
        flags = ["serve", "--config", str(config), "--log-level", "debug"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        process = subprocess.Popen([*command, *flags], stdout=out, stderr=out, env=environment)
    try:
        yield Serving(_address(process, log), process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(30)
    assert code == 0, log.read_text()[-5000:]


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """The address of a server once it is ready."""
    server = Serving("", process, log)
    found = server.told(lambda entry: entry["event"] == "gateway.listening", within_s=START_S)
    address = str(found["address"])
    with Client(address) as client:
        try:
            client.wait_until_ready(START_S)
        except TandemError:
            print(log.read_text(), file=sys.stderr)
            raise
    return address
