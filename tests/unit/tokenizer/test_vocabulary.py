"""What a file's metadata must hold, and what each token's bytes are."""

import pytest

from services.model_file import Metadata
from services.tokenizer import TokenizerFileError
from services.tokenizer.vocabulary import TokenKind, Vocabulary, from_metadata, token_bytes


def metadata(**changes: object) -> Metadata:
    values: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<s>", "a", "Ġ", "aĠ", "ÃĹ", "€"],
        "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1],
        "tokenizer.ggml.merges": ["a Ġ"],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.eot_token_id": 1,
        "tokenizer.ggml.eom_token_id": 0,
    }
    values.update({"tokenizer.ggml." + key: value for key, value in changes.items()})
    return {key: value for key, value in values.items() if value is not None}  # type: ignore[misc]


def test_every_end_of_turn_token_is_an_end_once() -> None:
    assert from_metadata(metadata()).eos_token_ids == (0, 1)


def test_bytes_follow_the_visible_alphabet() -> None:
    assert token_bytes(from_metadata(metadata())) == (b"<s>", b"a", b" ", b"a ", "×".encode(), "€".encode())


@pytest.mark.parametrize("kind", [TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED])
def test_a_token_that_is_not_made_of_bytes_stands_for_its_text(kind: TokenKind) -> None:
    vocabulary = from_metadata(metadata(token_type=[kind] * 6))
    assert token_bytes(vocabulary)[2] == "Ġ".encode()
    assert vocabulary.is_special(2) is (kind is not TokenKind.USER_DEFINED)


def test_an_unused_token_stands_for_nothing() -> None:
    vocabulary = from_metadata(metadata(token_type=[TokenKind.UNUSED] * 6))
    assert set(token_bytes(vocabulary)) == {b""}


def test_kinds_may_be_absent() -> None:
    vocabulary = from_metadata(metadata(token_type=None))
    assert isinstance(vocabulary, Vocabulary) and set(vocabulary.kinds) == {TokenKind.NORMAL}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "llama"}, "tokenizer.ggml.model is 'llama'"),
        ({"model": None}, "tokenizer.ggml.model is None"),
        ({"pre": None}, "tokenizer.ggml.pre is missing"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"merges": ["ab"]}, "'ab'"),
        ({"token_type": [1]}, "1 entries for 6 tokens"),
        ({"eos_token_id": 6}, "tokenizer.ggml.eos_token_id is 6"),
        ({"bos_token_id": -1}, "tokenizer.ggml.bos_token_id is -1"),
    ],
)
def test_what_cannot_be_served_is_named(changes: dict[str, object], named: str) -> None:
    with pytest.raises(TokenizerFileError, match=named):
        from_metadata(metadata(**changes))
