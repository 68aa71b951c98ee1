"""How text is cut before byte-level BPE sees it: one row for each pre-tokenizer that a model file may name.

A row is here only when its rule is known exactly: a wrong cut gives other tokens and a model that is merely poorer,
which nobody notices. Whatever is not here is refused at start, by name.
"""

import unicodedata
from dataclasses import dataclass
from typing import Any, Protocol

from tokenizers import AddedToken, Regex
from tokenizers.normalizers import NFC, Normalizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from services.tokenizer.errors import TokenizerFileError

# The families of Llama 3 and Qwen 2 share one pattern but for how many digits a piece may hold.
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Cutting(Protocol):
    """What comes before BPE: a row of the table here, or what a tokenizer.json says. options: of the BPE model."""

    @property
    def adds_bos(self) -> bool: ...

    @property
    def options(self) -> dict[str, Any]: ...

    def pre_tokenizer(self) -> PreTokenizer | None:
        """What cuts a text into pieces."""

    def normalizer(self) -> Normalizer | None:
        """What changes a text before it is cut."""

    def normalized(self, text: str) -> str:
        """A text as BPE meets it."""

    def added(self, text: str) -> AddedToken:
        """A token that is one wherever its text stands."""


@dataclass(frozen=True)
class Rule:
    """digits: None = the GPT-2 pattern, else the shared pattern with this piece for numbers."""

    digits: str | None = None
    single_digits: bool = False  # each digit is cut off before anything else
    is_nfc: bool = False
    ignore_merges: bool = False  # a whole piece that is a token is that token, whatever the merges say
    adds_bos: bool = False  # when the file does not say

    def pre_tokenizer(self) -> PreTokenizer:
        """The cutter of this rule; its last part also turns bytes into the visible alphabet."""
        if self.digits is not None:
            pattern = Regex(_PATTERN.format(digits=self.digits))
            return Sequence([Split(pattern, "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
        gpt2 = ByteLevel(add_prefix_space=False, use_regex=True)
        return Sequence([Digits(individual_digits=True), gpt2]) if self.single_digits else gpt2

    def normalizer(self) -> Normalizer | None:
        return NFC() if self.is_nfc else None

    @property
    def options(self) -> dict[str, Any]:
        """Of the BPE model."""
        return {"ignore_merges": self.ignore_merges}

    def normalized(self, text: str) -> str:
        """A text as BPE meets it."""
        return unicodedata.normalize("NFC", text) if self.is_nfc else text

    def added(self, text: str) -> AddedToken:
        """A token that is one wherever its text stands."""
        return AddedToken(text, normalized=False)


_LLAMA_3 = Rule(digits=r"\p{N}{1,3}", ignore_merges=True, adds_bos=True)

RULES = {
    "gpt-2": Rule(),
    "smollm": Rule(single_digits=True),
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "qwen2": Rule(digits=r"\p{N}", is_nfc=True),
}


def rule_of(name: str) -> Rule:
    """The rule that a model file names; raises TokenizerFileError for one that is not known."""
    if name not in RULES:
        raise TokenizerFileError(f"the pre-tokenizer {name!r} is not supported; known are {', '.join(sorted(RULES))}")
    return RULES[name]
