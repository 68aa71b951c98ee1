"""The supervisor: starts the four processes, passes signals on, and sees to it that all of them end together.

It knows how to start a process, how to signal it and when it ended; in which order a server goes down is shutdown.py's
affair. Every child has a session of its own, so that a terminal's interrupt reaches the supervisor alone, and asks the
kernel to be killed when the supervisor dies (lifecycle.py). To be used from a process's main thread: the kernel counts
the death of the thread that started a child as the death of its parent.

An executor that dies is replaced, as long as restarts.py allows; one that hangs is killed first. There are never two.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import structlog

from services.runtime import instances, link_keys, process
from services.runtime.restarts import Restarts
from services.runtime.run_dir import SETTINGS_FILE, open_run_dir
from services.runtime.settings import LinkSettings, ServerSettings, SettingsError, temporary_root
from services.runtime.shutdown import Patience, Send, Shutdown
from services.wire.topology import AddressError

# Started in this order: the executor has the longest way to go.
MODULES = {
    "executor": "services.executor",
    "scheduler": "services.scheduler",
    "detokenizer": "services.detokenizer",
    "gateway": "gateway",
}
FRONT = "gateway"
KEYS_FILE = "links.keys"
REPLACEABLE = "executor"
# What a gateway needs beyond drain_s to say its last words.
FAREWELL_S = 5.0
# A look at the children without being told: a lost notice must not hang a server.
LOOK_AGAIN_S = 1.0


def supervise(settings: ServerSettings, on_started: Callable[[Path], None]) -> int:
    """Run a whole server until it ends; the exit code. on_started gets the run directory once all processes run.

    SIGTERM or SIGINT stops the server, a second one at once. Raises SettingsError before anything is started.
    """
    if settings.links.gateways != (settings.gateway.name,):
        raise SettingsError(f"links.gateways: a server of its own has one gateway, {settings.gateway.name!r}")
    with open_run_dir(settings.links.run_dir, temporary_root()) as run_dir, _signals() as signals:
        links = msgspec.structs.replace(settings.links, run_dir=str(run_dir))
        _check_addresses(links)
        if links.transport == "tcp":
            links = msgspec.structs.replace(links, keys=str(link_keys.at(Path(links.keys or run_dir / KEYS_FILE))))
        settings_file = run_dir / SETTINGS_FILE
        settings_file.write_bytes(msgspec.json.encode(msgspec.structs.replace(settings, links=links)))
        restarts = Restarts(settings.executor.max_restarts, settings.executor.restart_window_s)
        patience = Patience(settings.gateway.drain_delay_s + settings.gateway.drain_s + FAREWELL_S)
        supervisor = Supervisor(settings_file, patience, restarts)
        try:
            supervisor.start()
            on_started(run_dir)
            return supervisor.watch(signals)
        finally:
            supervisor.kill()


class Supervisor:
    """The processes of one server, from the start of the first to the end of the last."""

    def __init__(self, settings_file: Path, patience: Patience, restarts: Restarts) -> None:
        self._settings_file = settings_file
        self._run_dir = settings_file.parent
        self._restarts = restarts
        self._shutdown = Shutdown(set(), FRONT, patience)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._log = structlog.get_logger()

    def start(self) -> None:
        """Start every process."""
        for service in MODULES:
            self._start(service)

    def watch(self, signals: socket.socket) -> int:
        """Pass signals on and watch the processes until all have ended; the exit code of the server."""
        shutdown = self._shutdown
        while not shutdown.is_over:
            due = min(shutdown.deadline, self._restarts.due)
            patience_s = min(max(due - time.monotonic(), 0.0), LOOK_AGAIN_S)
            is_told, _, _ = select.select([signals], [], [], patience_s)
            for number in signals.recv(64) if is_told else b"":
                if number != signal.SIGCHLD:
                    self._log.info("server.stopping", signal=signal.Signals(number).name)
                    self._deliver(shutdown.ask(time.monotonic()))
            self._reap()
            if shutdown.is_serving:
                self._look_after_executor()
            self._deliver(shutdown.pass_time(time.monotonic()))
        self._log.info("server.stopped", exit_code=shutdown.exit_code)
        return shutdown.exit_code

    def kill(self) -> None:
        """End at once whatever still runs, and wait for it."""
        for child in self._children.values():
            child.kill()
            child.wait()

    def _start(self, service: str) -> None:
        # -P: a folder named services where the user happens to stand must not be taken for ours.
        python = [sys.executable, "-P", "-m", MODULES[service]]
        arguments = ["--settings", str(self._settings_file), "--parent", str(os.getpid())]
        self._children[service] = subprocess.Popen(
            [*python, *arguments], stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._shutdown.alive.add(service)

    def _reap(self) -> None:
        for service in sorted(self._shutdown.alive):
            code = self._children[service].poll()
            if code is None:
                continue
            if service == REPLACEABLE and self._shutdown.is_serving and self._is_replaced(code):
                self._shutdown.alive.discard(service)
                continue
            was_failing = self._shutdown.exit_code
            sends = self._shutdown.ended(service, code, time.monotonic())
            is_cause = self._shutdown.exit_code != was_failing
            log = self._log.error if is_cause else self._log.info
            log("service.died" if is_cause else "service.ended", name=service, cause=_cause(code))
            self._deliver(sends)

    def _is_replaced(self, code: int) -> bool:
        """The executor is dead: whether another will take its place."""
        with contextlib.suppress(ProcessLookupError):  # nothing that it started may hold on to the device
            os.killpg(self._children[REPLACEABLE].pid, signal.SIGKILL)
        now = time.monotonic()
        reason = self._restarts.died(now, instances.is_ready(self._run_dir))
        instances.clear(self._run_dir)
        if reason:
            self._log.error("executor.not_restarted", reason=reason)
            return False
        self._log.error("service.died", name=REPLACEABLE, cause=_cause(code))
        self._log.warning("executor.restarting", pause_s=round(self._restarts.due - now, 3))
        return True

    def _look_after_executor(self) -> None:
        """Start the next one when it is due, and kill one that hangs."""
        if self._restarts.take_due(time.monotonic()):
            self._start(REPLACEABLE)
        elif instances.is_lost(self._run_dir):
            self._log.error("executor.hangs")
            self._children[REPLACEABLE].kill()

    def _deliver(self, sends: list[Send]) -> None:
        for send in sends:
            self._children[send.service].send_signal(send.signal)


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket on which the number of every signal that concerns a supervisor arrives as one byte."""
    receiver, sender = socket.socketpair()
    with closing(receiver), closing(sender):
        sender.setblocking(False)
        numbers = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
        fd_before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, lambda *_: None) for number in numbers}
        try:
            yield receiver
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(fd_before)


def _check_addresses(links: LinkSettings) -> None:
    topology = process.topology(links)
    try:
        topology.check()
    except AddressError as error:
        raise SettingsError(str(error)) from error


def _cause(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
