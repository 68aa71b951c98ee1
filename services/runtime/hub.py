"""Models of the Hugging Face hub by name: taken from its cache on this machine, or fetched into it.

A name is ORG/NAME, for the repository's directory, or ORG/NAME/FILE.gguf. The `huggingface-hub` package is optional
(extra `hub`) and only asked for a name; its own environment variables (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE) hold. What is
whole in the cache is used as it is, so that a server that has its model starts without a network.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from services.runtime.settings import SettingsError

_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAME = re.compile(rf"(?P<repository>{_PART}/{_PART})(?:/(?P<file>(?:{_PART}/)*{_PART}\.gguf))?")
_NEEDED = ("config.json", "tokenizer.json")
_TEXT = ("*.json", "*.jinja")
_WEIGHTS = ("*.safetensors",)
_ADVICE = "copy the model's folder to this machine and give its path, or fetch it where there is a network"


def is_name(text: str) -> bool:
    """Whether a text could name a model of the hub."""
    return _NAME.fullmatch(text) is not None


def cached() -> Iterator[tuple[str, Path]]:
    """The models in the cache by their names: directories, and GGUF files of repositories that are none."""
    if find_spec("huggingface_hub") is None:
        return
    from huggingface_hub import constants  # noqa: PLC0415

    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*/snapshots/*")):
        name = folder.parent.parent.name.removeprefix("models--").replace("--", "/")
        if (folder / "config.json").is_file():
            yield name, folder
        yield from ((f"{name}/{file.relative_to(folder)}", file) for file in sorted(folder.rglob("*.gguf")))


def fetch(name: str, endpoint: str = "", *, with_weights: bool = True) -> Path:
    """The directory or file in the cache, fetched when it is not whole there; raises SettingsError.

    endpoint: of another hub than the package's own. with_weights=False: of a directory only its texts.
    """
    if find_spec("huggingface_hub") is None:
        raise SettingsError(
            f"model.path: there is no {name} here, and to fetch it from the hub takes: pip install huggingface-hub"
        )
    wanted = _NAME.fullmatch(name)
    assert wanted is not None, f"{name!r} is no name"
    repository, file = wanted["repository"], wanted["file"]
    patterns = [file] if file else [*_TEXT, *(_WEIGHTS if with_weights else ())]
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

    try:
        with suppress(LocalEntryNotFoundError):
            folder = snapshot_download(repository, allow_patterns=patterns, local_files_only=True)
            if _is_whole(Path(folder), file, with_weights):
                return Path(folder, file or "")
        folder = snapshot_download(repository, allow_patterns=patterns, endpoint=endpoint or None)
        is_whole = _is_whole(Path(folder), file, with_weights)
    except LocalEntryNotFoundError as error:
        raise SettingsError(f"model.path: {name} is not here and the hub cannot be reached: {_ADVICE}") from error
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SettingsError(f"model.path: {name} cannot be fetched from the hub: {reason}") from error
    if not is_whole:
        needed = file or "config.json, tokenizer.json and safetensors"
        raise SettingsError(f"model.path: {name}: the hub has no {needed} there")
    return Path(folder, file or "")


def _is_whole(folder: Path, file: str | None, with_weights: bool) -> bool:
    """Whether what is needed is there; of weights in several files, all of them."""
    index = folder / "model.safetensors.index.json"
    if file:
        wanted = [file]
    elif with_weights and index.is_file():
        wanted = [*_NEEDED, *json.loads(index.read_bytes()).get("weight_map", {}).values()]
    else:
        wanted = [*_NEEDED, *(["model.safetensors"] if with_weights else [])]
    return all((folder / name).is_file() for name in wanted)
