"""A server as the operating system sees it: the process of `tandem serve`, its services, its files, how they end.

For tests of what happens to processes. Nothing is assumed to go well: a test looks at exit codes and logs itself. But
whatever a test does to its server, neither a process nor a file nor a shared-memory object may outlive it: every such
test is a start and a stop without a trace.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from services.runtime.supervisor import MODULES
from tandem import Client

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
LOOK_EVERY_S = 0.02
Settings = Mapping[str, Mapping[str, Any]]


@dataclass
class Server:
    """One `tandem serve`. root: the folder that all its files are in; log: what it wrote."""

    process: "subprocess.Popen[bytes]"
    root: Path
    log: Path
    shared_memory: set[Path] = field(default_factory=set)

    @property
    def is_running(self) -> bool:
        """Whether its supervisor lives."""
        return self.process.poll() is None

    def entries(self, event: str) -> list[dict[str, Any]]:
        """The lines of the log that tell of this event."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]

    def family(self) -> list[psutil.Process]:
        """Every process that lives and was started for this server: their arguments name its folder."""
        found = psutil.process_iter(["cmdline"])
        return [process for process in found if any(str(self.root) in part for part in process.info["cmdline"] or ())]

    def services(self) -> dict[str, psutil.Process]:
        """The processes of the four services, by name, once all have been started."""
        self.wait_for(lambda: len(self._services()) == len(MODULES))
        return self._services()

    def address(self) -> str:
        """Where its gateway listens, once it does."""
        self.wait_for(lambda: bool(self._listen_files()))
        return self._listen_files()[0].read_text()

    def wait_ready(self) -> str:
        """Its address, once it serves."""
        address = self.address()
        with Client(address) as client:
            client.wait_until_ready(PATIENCE_S)
        maps = [piece.path for process in self.services().values() for piece in process.memory_maps()]
        self.shared_memory = {Path(path) for path in maps if path.startswith("/dev/shm/")}
        return address

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait as long as the server lives; fails when it does not, or takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert self.is_running, f"the server has ended:\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"it does not come:\n{self.log.read_text()}"
            time.sleep(LOOK_EVERY_S)

    def stop(self) -> None:
        """End it in order."""
        self.process.send_signal(signal.SIGTERM)
        assert self.wait_end() == 0, self.log.read_text()

    def wait_end(self) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"the server does not end:\n{self.log.read_text()}") from error

    def wait_alone(self) -> None:
        """Return once no process of it lives."""
        deadline = time.monotonic() + PATIENCE_S
        while self.family():
            assert time.monotonic() < deadline, self.remains()
            time.sleep(LOOK_EVERY_S)

    def remains(self) -> list[str]:
        """What has outlived it: processes, run directories, shared-memory objects that were open when it was ready."""
        processes = [f"{process.pid} {process.info['cmdline']}" for process in self.family()]
        paths = [*self.root.glob("tandem-*"), *(path for path in self.shared_memory if path.exists())]
        return processes + [str(path) for path in paths]

    def _services(self) -> dict[str, psutil.Process]:
        names = {module: service for service, module in MODULES.items()}
        family = {process: process.info["cmdline"] for process in self.family()}
        return {
            names[module]: process for process, arguments in family.items() for module in arguments if module in names
        }

    def _listen_files(self) -> list[Path]:
        return list(self.root.glob("tandem-*/*.listen"))


@contextmanager
def server(settings: Settings, *flags: str, root: Path | None = None) -> Iterator[Server]:
    """A server that starts; the test must end it, and nothing may be left then. root: a folder that stays."""
    is_kept = root is not None
    # Not one of pytest's folders: their paths are too long for a socket.
    root = root or Path(tempfile.mkdtemp(prefix="t-"))
    (root / "tandem.toml").write_text(toml(settings))
    command = [sys.executable, "-c", "from tandem.cli import main; main()", "serve", *flags]
    command += ["--config", str(root / "tandem.toml")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(root), "COLUMNS": "200"}
    with (root / "log").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    started = Server(process, root, root / "log")
    try:
        yield started
        assert not started.is_running, "the test did not end its server"
        assert started.remains() == []
    finally:
        process.kill()
        process.wait()
        for left in started.family():
            left.kill()
        if not is_kept:
            shutil.rmtree(root)


def toml(settings: Settings) -> str:
    """Settings by section and key, in the form of a file."""
    sections = [
        "\n".join([f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())])
        for name, section in settings.items()
    ]
    return "\n\n".join(sections)
