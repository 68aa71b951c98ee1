"""Runs a command, and ends it with every process that it started as soon as whoever holds the leash lets go.

The leash is standard input: it is let go when it is closed, and the kernel closes it whatever its holder dies of. All
that the command leaves behind comes to this process, in whatever session it is (PR_SET_CHILD_SUBREAPER).

Usage: python -m tests.bench.peers.leash COMMAND ...
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

import psutil

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 20.0
ROOT = __file__.removesuffix("/tests/bench/peers/leash.py")


@contextmanager
def held(command: Sequence[str], log: IO[bytes], environment: dict[str, str]) -> "Iterator[subprocess.Popen[bytes]]":
    """A command that runs as long as the block, and no longer, whatever ends the block or this process."""
    leashed = [sys.executable, "-m", "tests.bench.peers.leash", *command]
    with subprocess.Popen(
        leashed, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, cwd=ROOT, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def main(command: Sequence[str]) -> int:
    """The command's exit code."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        select.select([sys.stdin, os.pidfd_open(process.pid)], [], [])
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
        kill_all()
    return process.wait()


def kill_all() -> None:
    """Every descendant; one that loses its parent becomes a child of this process, and is seen at the next look."""
    while left := psutil.Process().children(recursive=True):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
