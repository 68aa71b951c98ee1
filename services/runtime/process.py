"""What every service's process makes of the settings of the links: the table of addresses, and a sign of life.

The sign is a file in the run directory that each heartbeat touches, for whoever watches over a process that speaks no
gRPC: `python -m services.runtime.process NAME` exits 0 while the file is fresh (links.death_s), 1 when it is not.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from services.runtime.settings import LinkSettings, environment, load
from services.runtime.settings_text import from_environment
from services.wire.topology import Topology


def topology(links: LinkSettings) -> Topology:
    """The addresses of every link."""
    return Topology(links.transport, links.run_dir, links.host, links.base_port, links.gateways, links.bind)


def sign_of_life(run_dir: str, name: str) -> Callable[[], None]:
    """What touches the file of a service; without a run directory nobody looks."""
    return _path(run_dir, name).touch if run_dir else lambda: None


def is_alive(run_dir: str, name: str, within_s: float, now: float) -> bool:
    """Whether a service gave a sign of life; now: seconds since the epoch."""
    try:
        return now - _path(run_dir, name).stat().st_mtime <= within_s
    except FileNotFoundError:
        return False


def _path(run_dir: str, name: str) -> Path:
    return Path(run_dir) / f"{name}.alive"


if __name__ == "__main__":
    settings = load(None, from_environment(environment())).links
    sys.exit(not is_alive(settings.run_dir, sys.argv[1], settings.death_s, time.time()))
