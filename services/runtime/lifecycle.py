"""The life of one service process: settings in, signals heard, body run, an exit code out.

A service's __main__ is one call of `run`. Its settings come from the supervisor, or, where it has none (a container of
its own), from a file and the environment. SIGTERM asks the body to stop; a process that still starts it ends at once,
with 0: nobody has come to it yet, and to load a model may take longer than a container is given to end. SIGUSR1 tells
the body that the engine behind it is dead, a second SIGTERM ends the process at once; SIGINT is the supervisor's
affair. A process started by a supervisor dies with it, whatever ends it. This is the one place that catches every
exception: it logs the cause and exits 1.
"""

import argparse
import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Literal, NoReturn

import structlog

from services.runtime import logs
from services.runtime.settings import ServerSettings, SettingsError, environment, handed_down, load
from services.runtime.settings_text import from_environment
from services.wire import keys, links

Kind = Literal["", "drain", "engine_dead"]
Body = Callable[[ServerSettings, "Stop"], None]

PR_SET_PDEATHSIG = 1
# A failing service still owes its peers the news; a peer that is gone too must not hold it up for longer than this.
FLUSH_S = 0.5


class Stop:
    """Whether, and how, this service has been asked to stop. From "drain" it may still turn to "engine_dead"."""

    def __init__(self) -> None:
        # Two marks that are only ever set: one signal handler may interrupt another at any point.
        self._is_draining = False
        self._is_dead = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def kind(self) -> Kind:
        """How the service is to stop; empty as long as it is not."""
        return "engine_dead" if self._is_dead else "drain" if self._is_draining else ""

    @property
    def is_heard(self) -> bool:
        """Whether the service listens to this: it has started."""
        return bool(self._callbacks)

    @property
    def is_set(self) -> bool:
        """True once the service was asked to stop."""
        return self.kind != ""

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call back at every change of kind, and now if it is set already. Runs in a signal handler: only wake up."""
        self._callbacks.append(callback)
        if self.is_set:
            callback()

    def set(self, kind: Literal["drain", "engine_dead"]) -> None:
        """Ask the service to stop; nothing turns "engine_dead" back into "drain"."""
        before = self.kind
        if kind == "drain":
            self._is_draining = True
        else:
            self._is_dead = True
        if self.kind != before:
            for callback in self._callbacks:
                callback()


def run(name: str, body: Body) -> NoReturn:
    """Run a service as this process's whole purpose; body returns when `stop` is set and its work is done."""
    arguments = _arguments(name)
    if arguments.parent:
        _die_with(arguments.parent)
    faulthandler.enable()
    stop = Stop()
    _listen(stop)
    settings = _settings(arguments)
    logs.configure(name, settings.log_level)
    code = _run_body(body, settings, stop)
    # Not sys.exit: it would wait for threads that a failure has left inside a computation, and run the clean-up code of
    # libraries whose work is moot. Sockets and logs are in order by now.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _arguments(name: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=name, description=f"The {name} service of Tandem.")
    parser.add_argument("--settings", type=Path, help="settings of the whole server, as JSON, from a supervisor")
    parser.add_argument("--config", type=Path, help="without a supervisor: settings as TOML, below the environment's")
    parser.add_argument("--parent", type=int, default=0, help="process id of the supervisor: die when it dies")
    return parser.parse_args()


def _settings(arguments: argparse.Namespace) -> ServerSettings:
    if arguments.settings:
        return handed_down(arguments.settings)
    try:
        return load(arguments.config, from_environment(environment()))
    except SettingsError as error:
        sys.exit(f"{error}")


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; where it cannot (not Linux), the supervisor must."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the kernel was asked.
    if os.getppid() != parent:
        os._exit(1)


def _listen(stop: Stop) -> None:
    terms = 0

    def on_term(_number: int, _frame: FrameType | None) -> None:
        # Counted, not read off `stop`: of two signals that wait together Python handles SIGUSR1 before SIGTERM.
        nonlocal terms
        terms += 1
        if terms > 1:
            os._exit(128 + signal.SIGTERM)
        if not stop.is_heard:
            os._exit(0)
        stop.set("drain")

    def on_dead(_number: int, _frame: FrameType | None) -> None:
        stop.set("engine_dead")

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGUSR1, on_dead)


def _run_body(body: Body, settings: ServerSettings, stop: Stop) -> int:
    log = structlog.get_logger()
    log.info("service.starting", pid=os.getpid())
    try:
        if settings.links.transport == "tcp":
            links.secure(keys.read(Path(settings.links.keys)))
        body(settings, stop)
    except Exception as error:
        log.error("service.failed", error=f"{type(error).__name__}: {error}", exc_info=True)
        links.finish(FLUSH_S)
        return 1
    log.info("service.stopped", kind=stop.kind)
    links.finish(0.0)
    return 0
