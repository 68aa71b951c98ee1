"""A model's directory in Hugging Face's form: which files it has, and what the JSON ones among them say.

config.json is the model's shape, generation_config.json how it ends, tokenizer.json and tokenizer_config.json its text
side, with the chat template in the last or in a file of its own. Knows names and JSON; knows nothing of tensors and
what the values mean. A file that is missing or cut is a ModelFileError that names it.
"""

import json
import re
from pathlib import Path
from typing import Any

from services.model_file.errors import ModelFileError

Json = dict[str, Any]

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE, TEMPLATES = "chat_template.jinja", "chat_template.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

# Where the hub's cache keeps models--ORG--NAME/snapshots/COMMIT.
_CACHED = re.compile(r"models--(?P<name>.+)")


def read_json(path: Path) -> Json:
    """The object that a file holds; raises ModelFileError."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror}") from error
    except ValueError as error:  # no JSON, or no UTF-8
        raise ModelFileError(f"{path}: no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: a JSON object was expected, not {type(value).__name__}")
    return value


def read_json_if_there(path: Path) -> Json:
    """As read_json; empty when there is no such file."""
    return read_json(path) if path.is_file() else {}


def eos_token_ids(directory: Path) -> tuple[int, ...]:
    """The tokens that end a text, none twice: of generation_config.json, else of config.json, else the tokenizer's."""
    for name in (GENERATION, CONFIG):
        value = read_json_if_there(directory / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
            raise ModelFileError(f"{directory / name}: eos_token_id is {value!r}, neither an id nor a list of them")
        if ids:
            return tuple(dict.fromkeys(ids))
    text = text_of(read_json_if_there(directory / TOKENIZER_CONFIG).get("eos_token"))
    token_id = None if text is None else token_ids(read_json_if_there(directory / TOKENIZER)).get(text)
    return () if token_id is None else (token_id,)


def text_of(token: Any) -> str | None:
    """A token of tokenizer_config.json: its text, or an object that holds it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def token_ids(tokenizer: Json) -> dict[str, int]:
    """Every text of a tokenizer.json with its id, added ones included."""
    vocabulary = (tokenizer.get("model") or {}).get("vocab")
    ids: dict[str, int] = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    return ids | {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or []}


def name_of(path: Path) -> str:
    """What to call a model that does not name itself: its folder, or its repository where the hub's cache has it."""
    cached = _CACHED.fullmatch(path.parent.parent.name) if path.parent.name == "snapshots" else None
    return cached["name"].replace("--", "/") if cached else path.stem if path.is_file() else path.resolve().name


def chat_template(directory: Path) -> str | None:
    """The Jinja text, None when there is none. Of several, the one that is called default."""
    if (path := directory / TEMPLATE).is_file():
        try:
            return path.read_text()
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{path}: {error}") from error
    for name in (TEMPLATES, TOKENIZER_CONFIG):
        value = read_json_if_there(directory / name).get("chat_template")
        if isinstance(value, list):
            named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
            value = named.get("default")
        if isinstance(value, str):
            return value
        if value is not None:
            raise ModelFileError(f"{directory / name}: chat_template is {type(value).__name__}, no text")
    return None
