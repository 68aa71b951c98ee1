"""The token table of a model, as its file tells it: texts, kinds, merges, special roles, and the bytes of each token.

Knows the GGUF keys and the byte-level alphabet; knows nothing of how text is cut into tokens. Invariant: texts,
kinds and token_bytes have one entry an id.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import cast

from services.model_file import Metadata
from services.tokenizer.errors import TokenizerFileError

BYTE_LEVEL_MODEL = "gpt2"


class TokenKind(IntEnum):
    """The file's tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """What the model file says of its tokens. merges: pairs, likeliest first."""

    pre_tokenizer: str
    texts: tuple[str, ...]
    kinds: tuple[int, ...]
    merges: tuple[tuple[str, str], ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    add_bos: bool | None  # None: the file does not say, the pre-tokenizer's row decides
    chat_template: str | None
    architecture: str = ""  # the model's family, such as llama
    named: Mapping[str, str] = field(default_factory=dict)  # texts that templates ask for by name, such as bos_token
    sampling: Mapping[str, float] = field(default_factory=dict)  # what the model's makers advise, by field
    blank: str | None = None  # what stands for a space, where tokens are text and not visible bytes

    @property
    def names(self) -> dict[str, str]:
        """Special texts by the names that templates have for them; the beginning and the first end always have one."""
        ids = {"bos_token": self.bos_token_id, "eos_token": next(iter(self.eos_token_ids), None)}
        return {name: "" if i is None else self.texts[i] for name, i in ids.items()} | dict(self.named)

    def is_special(self, token_id: int) -> bool:
        """Whether a token is no text: it is skipped in output, and text never becomes it by itself."""
        return self.kinds[token_id] in (TokenKind.CONTROL, TokenKind.UNKNOWN)


def from_metadata(metadata: Metadata) -> Vocabulary:
    """The vocabulary of a file's header; raises TokenizerFileError naming what is missing or not supported."""
    model = metadata.get("tokenizer.ggml.model")
    if model != BYTE_LEVEL_MODEL:
        raise TokenizerFileError(
            f"tokenizer.ggml.model is {model!r}; only byte-level BPE ({BYTE_LEVEL_MODEL!r}) is served"
        )
    for key in ("tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
        if key not in metadata:
            raise TokenizerFileError(f"{key} is missing from the model file")
    texts = tuple(cast(list[str], metadata["tokenizer.ggml.tokens"]))
    kinds = tuple(cast(list[int], metadata.get("tokenizer.ggml.token_type", [TokenKind.NORMAL] * len(texts))))
    if len(kinds) != len(texts):
        raise TokenizerFileError(f"tokenizer.ggml.token_type has {len(kinds)} entries for {len(texts)} tokens")
    return Vocabulary(
        pre_tokenizer=str(metadata["tokenizer.ggml.pre"]),
        texts=texts,
        kinds=kinds,
        merges=tuple(_pair(merge) for merge in cast(list[str], metadata["tokenizer.ggml.merges"])),
        eos_token_ids=tuple(dict.fromkeys(_end_ids(metadata, len(texts)))),
        bos_token_id=_token_id(metadata, "tokenizer.ggml.bos_token_id", len(texts)),
        add_bos=cast(bool | None, metadata.get("tokenizer.ggml.add_bos_token")),
        chat_template=cast(str | None, metadata.get("tokenizer.chat_template")),
        architecture=str(metadata.get("general.architecture", "")),
    )


def token_bytes(vocabulary: Vocabulary) -> tuple[bytes, ...]:
    """The bytes that each token stands for; a special token's are its text, an unused one has none."""
    alphabet = _byte_alphabet() if vocabulary.blank is None else {}
    pairs = zip(vocabulary.texts, vocabulary.kinds, strict=True)
    blank = vocabulary.blank or " "
    return tuple(_bytes_of(text.replace(blank, " "), kind, alphabet) for text, kind in pairs)


def _bytes_of(text: str, kind: int, alphabet: dict[str, int]) -> bytes:
    if kind == TokenKind.UNUSED:
        return b""
    if kind == TokenKind.BYTE:
        return bytes([int(text[3:5], 16)])  # <0x0A>
    if kind == TokenKind.NORMAL:
        try:
            return bytes([alphabet[character] for character in text])
        except KeyError:
            pass  # outside the alphabet: it stands for itself
    return text.encode()


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one visible character: that character -> the byte."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + order): byte for order, byte in enumerate(hidden)}


def _pair(merge: str) -> tuple[str, str]:
    left, blank, right = merge.partition(" ")
    if not (left and blank and right):
        raise TokenizerFileError(f"tokenizer.ggml.merges holds {merge!r}, which is no pair")
    return left, right


def _end_ids(metadata: Metadata, num_tokens: int) -> Iterator[int]:
    for role in ("eos", "eot", "eom"):
        token_id = _token_id(metadata, f"tokenizer.ggml.{role}_token_id", num_tokens)
        if token_id is not None:
            yield token_id


def _token_id(metadata: Metadata, key: str, num_tokens: int) -> int | None:
    token_id = cast(int | None, metadata.get(key))
    if token_id is not None and not 0 <= token_id < num_tokens:
        raise TokenizerFileError(f"{key} is {token_id}, which is outside the vocabulary of {num_tokens}")
    return token_id
