"""The folder of one running server: its settings, its sockets, the address its gateway bound.

It is locked as long as the server runs. That keeps two servers out of one folder, and tells a folder in use from one
that a killed server left behind: such ones are removed when the next server makes its own.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.runtime.settings import SettingsError

PREFIX = "tandem-"
# Written once the folder is locked: a folder with this file and without a lock belongs to nobody any more.
SETTINGS_FILE = "settings.json"


@contextmanager
def open_run_dir(wanted: str, root: Path) -> Iterator[Path]:
    """A locked folder for one server: `wanted`, or a new private one under `root` when that is empty.

    At the end it is removed; one that was there before stays, without what the server put into it. Raises
    SettingsError when it cannot be made or another server runs in it.
    """
    was_there = bool(wanted) and os.path.isdir(wanted)
    path = _make(Path(wanted).absolute()) if wanted else _make_private(root)
    lock = _lock(path)
    if lock is None:
        raise SettingsError(f"links.run_dir: another server runs in {path}")
    kept = set(path.iterdir())
    try:
        yield path
    finally:
        if was_there:
            _empty(path, kept)
        else:
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def publish(path: Path, text: str) -> None:
    """Write a file in one go: whoever sees it sees it whole."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text)
    os.replace(draft, path)


def _make(path: Path) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"links.run_dir: cannot make {path}: {error.strerror}") from error
    return path


def _make_private(root: Path) -> Path:
    for settings in root.glob(f"{PREFIX}*/{SETTINGS_FILE}"):
        left = settings.parent
        lock = _lock(left) if left.lstat().st_uid == os.getuid() else None
        if lock is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))


def _lock(path: Path) -> int | None:
    """The descriptor that holds the lock, None when somebody else does (or the folder is not ours to open)."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(folder)
        return None
    return folder


def _empty(path: Path, kept: set[Path]) -> None:
    """Remove the files that were not there before; a server makes no folders."""
    for entry in set(path.iterdir()) - kept:
        entry.unlink(missing_ok=True)
