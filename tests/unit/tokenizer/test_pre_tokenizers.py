"""Where each pre-tokenizer cuts."""

import pytest

from services.tokenizer.pre_tokenizers import RULES, rule_of

TEXT = "I'LL pay  12345 €\n\n x_y"


def pieces(name: str, text: str) -> list[str]:
    return [text[start:end] for _, (start, end) in rule_of(name).pre_tokenizer().pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", ["I", "'", "LL", " pay", " ", " 12345", " €", "\n\n", " x", "_", "y"]),
        ("smollm", ["I", "'", "LL", " pay", "  ", "1", "2", "3", "4", "5", " €", "\n\n", " x", "_", "y"]),
        ("llama-bpe", ["I", "'LL", " pay", " ", " ", "123", "45", " €\n\n", " x", "_y"]),
        ("qwen2", ["I", "'LL", " pay", " ", " ", "1", "2", "3", "4", "5", " €\n\n", " x", "_y"]),
    ],
)
def test_cuts(name: str, expected: list[str]) -> None:
    assert pieces(name, TEXT) == expected


@pytest.mark.parametrize("name", sorted(RULES))
def test_no_character_is_lost(name: str) -> None:
    text = "a\u3000b\r\n\t 42½Ⅷ 'S don't  \U0001f469\u200d\U0001f467 \x00end  "
    assert "".join(pieces(name, text)) == text
