"""The file of a server's link keys: made at the first start, read by every process, and by nobody else's.

Two lines, public and secret half, as links makes them. Knows no socket. Invariant: the file is never readable by
others, or it is refused.
"""

import os
from pathlib import Path

MODE = 0o600


class KeysError(Exception):
    """The file of keys cannot be used; the text says why."""


def write(path: Path, keys: tuple[bytes, bytes]) -> None:
    """Make the file; raises KeysError when it cannot be made or is there."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(b"\n".join((*keys, b"")))


def read(path: Path) -> tuple[bytes, bytes]:
    """Public and secret half; raises KeysError."""
    try:
        mode = path.stat().st_mode
        lines = path.read_bytes().split()
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from error
    if mode & 0o077:
        raise KeysError(f"{path}: others may read it; chmod {MODE:o}")
    if [len(line) for line in lines] != [40, 40]:
        raise KeysError(f"{path}: these are no keys")
    return lines[0], lines[1]
