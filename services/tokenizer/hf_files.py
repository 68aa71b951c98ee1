"""The tokenizer of a Hugging Face directory: its token table, and how its tokenizer.json cuts text.

Byte-level BPE, and BPE that falls back to bytes; anything else is refused by name. tokenizer.json is what counts;
tokenizer_config.json names the special texts that templates ask for. Knows the files, not what is done with them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from services.model_file import ModelFileError
from services.model_file.directory import (
    CONFIG,
    GENERATION,
    TOKENIZER,
    TOKENIZER_CONFIG,
    chat_template,
    eos_token_ids,
    read_json,
    read_json_if_there,
    text_of,
)
from services.tokenizer.errors import TokenizerFileError
from services.tokenizer.vocabulary import TokenKind, Vocabulary

BLANK = "▁"  # what stands for a space in vocabularies that fall back to bytes
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
# The least and the most that makes sense; a top_p of 0 would leave nothing.
_ADVICE = {
    "temperature": (0.0, 100.0),
    "top_k": (0, 1 << 30),
    "top_p": (1e-6, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}


class FileRule:
    """What a tokenizer.json does before BPE; the twin of a Rule, which stands for it in GGUF files."""

    adds_bos = False  # the vocabulary says

    def __init__(self, source: bytes, blank: str | None) -> None:
        self.source = source
        try:
            loaded = tokenizers.Tokenizer.from_str(source.decode())
        except Exception as error:  # the library has no type of its own for a part that it does not know
            raise ValueError(f"{error}") from error
        self._pre_tokenizer: PreTokenizer | None = loaded.pre_tokenizer
        self._normalizer: Normalizer | None = loaded.normalizer
        self._added: dict[str, AddedToken] = {
            token.content: token for token in loaded.get_added_tokens_decoder().values()
        }
        self._blank = blank
        model = json.loads(source)["model"]
        keys = ("unk_token", "fuse_unk", "byte_fallback", "ignore_merges")
        self.options: dict[str, Any] = {key: model[key] for key in keys if model.get(key) is not None}
        self.prefix = _prefix(loaded)

    def pre_tokenizer(self) -> PreTokenizer | None:
        return self._pre_tokenizer

    def normalizer(self) -> Normalizer | None:
        return self._normalizer

    def normalized(self, text: str) -> str:
        """A text as BPE meets it, spaces as they stand for themselves."""
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        return text if self._blank is None else text.replace(self._blank, " ")

    def added(self, text: str) -> AddedToken:
        """A token that is one wherever its text stands."""
        return self._added[text]


def read(directory: Path) -> tuple[Vocabulary, FileRule]:
    """Raises TokenizerFileError, which says what is missing or not supported."""
    try:
        return _read(directory)
    except ModelFileError as error:
        raise TokenizerFileError(str(error)) from error


def _read(directory: Path) -> tuple[Vocabulary, FileRule]:
    path = directory / TOKENIZER
    description = read_json(path)
    model = description.get("model") or {}
    if model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict) or not model["vocab"]:
        raise TokenizerFileError(f"{path}: the model is {model.get('type')!r}; only BPE is served")
    if not (model.get("byte_fallback") or _has_bytes(description.get("pre_tokenizer"))):
        raise TokenizerFileError(f"{path}: the model is neither byte-level nor does it fall back to bytes")
    blank = BLANK if model.get("byte_fallback") else None
    try:
        rule = FileRule(path.read_bytes(), blank)
    except ValueError as error:
        raise TokenizerFileError(f"{path}: {error}") from error
    return _vocabulary(directory, description, rule, blank), rule


def _vocabulary(directory: Path, description: Mapping[str, Any], rule: FileRule, blank: str | None) -> Vocabulary:
    texts, kinds = _table(description, blank)
    ids = {text: token_id for token_id, text in enumerate(texts)}
    named = _named(directory)
    ends = eos_token_ids(directory)
    for token_id in ends:
        if token_id >= len(texts):
            raise TokenizerFileError(f"{directory}: the end token {token_id} is outside the {len(texts)} tokens")
    return Vocabulary(
        pre_tokenizer="",
        texts=tuple(texts),
        kinds=tuple(kinds),
        merges=tuple(_pairs(directory / TOKENIZER, description["model"].get("merges") or [])),
        eos_token_ids=ends,
        bos_token_id=rule.prefix[0] if rule.prefix else ids.get(named.get("bos_token", "")),
        add_bos=bool(rule.prefix),
        chat_template=chat_template(directory),
        architecture=str(read_json_if_there(directory / CONFIG).get("model_type", "")),
        named=named,
        sampling=_sampling(directory / GENERATION),
        blank=blank,
    )


def _table(description: Mapping[str, Any], blank: str | None) -> tuple[list[str], list[int]]:
    """The text and kind of every id; ids that nobody has are unused."""
    by_id = {token_id: (text, TokenKind.NORMAL) for text, token_id in description["model"]["vocab"].items()}
    if blank is not None:
        bytes_texts = {f"<0x{byte:02X}>" for byte in range(0x100)}
        by_id |= {i: (text, TokenKind.BYTE) for i, (text, _) in by_id.items() if text in bytes_texts}
    for token in description.get("added_tokens") or []:
        kind = TokenKind.CONTROL if token.get("special") else TokenKind.USER_DEFINED
        by_id[token["id"]] = (token["content"], kind)
    holes = ((f"<unused id {token_id}>", TokenKind.UNUSED) for token_id in range(max(by_id) + 1))
    table = [by_id.get(token_id, hole) for token_id, hole in enumerate(holes)]
    return [text for text, _ in table], [int(kind) for _, kind in table]


def _pairs(path: Path, merges: list[Any]) -> Iterator[tuple[str, str]]:
    for merge in merges:
        left, right = merge.split(" ", 1) if isinstance(merge, str) and " " in merge else [*merge, "", ""][:2]
        if not (left and right) or (isinstance(merge, list) and len(merge) != 2):
            raise TokenizerFileError(f"{path}: merges holds {merge!r}, which is no pair")
        yield left, right


def _named(directory: Path) -> dict[str, str]:
    """bos_token, eos_token and their like: texts, or objects that hold one."""
    found: dict[str, str] = {}
    for name in (SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG):
        for key, value in read_json_if_there(directory / name).items():
            text = text_of(value) if key.endswith("_token") else None
            if text is not None:
                found[key] = text
    return found


def _sampling(path: Path) -> dict[str, float]:
    """The fields of generation_config.json that a request has too; greedy where it says that nothing is drawn."""
    values = read_json_if_there(path)
    found: dict[str, float] = {}
    for name, (least, most) in _ADVICE.items():
        value = values.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise TokenizerFileError(f"{path}: {name} is {value!r}, not between {least} and {most}")
        found[name] = value
    return found | ({"temperature": 0.0} if values.get("do_sample") is False else {})


def _has_bytes(part: Any) -> bool:
    """Whether a pre-tokenizer turns bytes into visible characters, itself or one of its parts."""
    if not isinstance(part, dict):
        return False
    return part.get("type") == "ByteLevel" or any(map(_has_bytes, part.get("pretokenizers") or []))


def _prefix(loaded: tokenizers.Tokenizer) -> list[int]:
    """What is put before a text: the beginning-of-text token, if any; raises ValueError for whatever else is added."""
    plain, whole = (loaded.encode("a", add_special_tokens=adds).ids for adds in (False, True))
    prefix: list[int] = whole[: len(whole) - len(plain)] if whole != plain else []
    if len(prefix) > 1 or whole != prefix + plain:
        raise ValueError(f"a text of {plain} becomes {whole}, where at most one token before it is served")
    return prefix
