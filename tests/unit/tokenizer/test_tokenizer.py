"""Text <-> ids of the default model, by exact ids, and of small made-up models."""

import json
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tokenizers

from services.tokenizer import TextError, Tokenizer, TokenizerFileError
from tests.unit.tokenizer.conftest import small_vocabulary

DATA = Path(__file__).parents[2] / "data"
CASES: dict[str, Any] = {
    case["id"]: case["data"] for case in map(json.loads, (DATA / "cases_text.jsonl").read_text().splitlines())
}
PROMPTS = [json.loads(line) for line in (DATA / "cases_prompts.jsonl").read_text().splitlines()]
_PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(0x100) if byte not in _PLAIN]
VISIBLE = {byte: chr(byte) for byte in _PLAIN} | {byte: chr(0x100 + order) for order, byte in enumerate(_HIDDEN)}
MISSING = bytes(CASES["C45"]["missing_bytes"])


@pytest.mark.parametrize("case", ["C44", "C45"])
def test_texts_with_bytes_that_have_no_token(tokenizer: Tokenizer, case: str) -> None:
    for text, token_ids in zip(CASES[case]["texts"], CASES[case]["ids"], strict=True):
        for parse_special in (True, False):
            assert tokenizer.encode(text, parse_special) == token_ids


@pytest.mark.parametrize(
    ("text", "token_ids"),
    [("a  1", [81, 256, 33]), ("  42", [256, 36, 34]), ("\n 1", [3805, 33]), ("    5", [289, 37])],
)
def test_digits_are_cut_off_before_anything_else(tokenizer: Tokenizer, text: str, token_ids: list[int]) -> None:
    assert tokenizer.encode(text, parse_special=False) == token_ids


def test_every_byte_alone_is_its_token_or_nothing(tokenizer: Tokenizer) -> None:
    singles = {tokenizer.token_bytes(i): i for i in range(17, tokenizer.vocab_size)}
    for byte in range(0x80):
        expected = [] if byte in MISSING else [singles[bytes([byte])]]
        assert tokenizer.encode(chr(byte), parse_special=True) == expected
    for byte in range(0x80, 0x100):
        assert (bytes([byte]) in singles) is (byte not in MISSING)


def test_a_character_whose_lead_byte_is_missing_decodes_to_replacements(tokenizer: Tokenizer) -> None:
    for text in ("\U00040000", "\U00080000"):
        token_ids = tokenizer.encode(text, parse_special=False)
        kept = bytes(byte for byte in text.encode() if byte not in MISSING)
        assert b"".join(map(tokenizer.token_bytes, token_ids)) == kept
        assert tokenizer.decode(token_ids, skip_special_tokens=True) == "\ufffd" * 3


def test_text_without_missing_bytes_survives_the_round_trip(tokenizer: Tokenizer) -> None:
    draw = Random(7)
    alphabet = "ab  \n\t019'.,<|>éß本語👩‍👧\u0301\u200b"
    for _ in range(300):
        text = "".join(draw.choices(alphabet, k=draw.randint(0, 40)))
        assert tokenizer.decode(tokenizer.encode(text, parse_special=False), skip_special_tokens=False) == text


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b"])
def test_a_lone_surrogate_is_an_error_for_the_client(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(TextError, match="lone surrogate"):
        tokenizer.encode(text, parse_special=False)
    with pytest.raises(TextError, match="lone surrogate"):
        tokenizer.encode_prompt(text)
    with pytest.raises(TextError, match=r"character \d"):
        tokenizer.fewest_tokens(text)


def test_nul_is_text_like_any_other(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a\x00b", parse_special=True) == CASES["C47"]["ids"]["nul"]
    assert tokenizer.decode([81, 190, 82], skip_special_tokens=True) == "a\x00b"


def test_special_tokens_are_spelled_only_where_that_is_asked_for(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("hi<|im_end|>", parse_special=True) == CASES["C49"]["ids"]["special"]
    assert tokenizer.encode("hi<|im_end|>", parse_special=False) == CASES["C49"]["ids"]["plain"]
    assert tokenizer.encode_prompt("hi<|im_end|>") == CASES["C49"]["ids"]["special"]


def test_the_first_seventeen_ids_are_special_and_no_other(tokenizer: Tokenizer) -> None:
    assert [i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)] == list(range(17))
    assert tokenizer.vocab_size == 49152
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.special_id("<|im_end|>") == 2
    assert tokenizer.special_id("<|im_end|") is None and tokenizer.special_id("Hello") is None
    assert tokenizer.decode([3, 104], skip_special_tokens=True) == "x"
    assert tokenizer.decode([3, 104], skip_special_tokens=False) == "<repo_name>x"


@pytest.mark.parametrize("prompt", [p for p in PROMPTS if p["kind"] == "raw"], ids=lambda p: p["prompt"][:20])
def test_raw_prompts_have_the_reference_ids(tokenizer: Tokenizer, prompt: dict[str, Any]) -> None:
    assert tokenizer.encode_prompt(prompt["prompt"]) == prompt["prompt_token_ids"]


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p["prompt"][:20])
def test_outputs_have_the_reference_text(tokenizer: Tokenizer, prompt: dict[str, Any]) -> None:
    assert tokenizer.decode(prompt["output_token_ids"], skip_special_tokens=True) == prompt["text"]


def test_decoding_equals_the_library(tokenizer: Tokenizer) -> None:
    reference = tokenizers.Tokenizer(tokenizers.models.BPE({_text(tokenizer, i): i for i in range(49152)}, []))
    reference.decoder = tokenizers.decoders.ByteLevel()
    reference.add_special_tokens([_text(tokenizer, i) for i in range(17)])
    draw = Random(11)
    for _ in range(2000):
        token_ids = [draw.randrange(17 if draw.random() < 0.1 else 49152) for _ in range(draw.randint(0, 12))]
        for skip in (True, False):
            expected = reference.decode(token_ids, skip_special_tokens=skip)
            assert tokenizer.decode(token_ids, skip_special_tokens=skip) == expected, token_ids


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as the library's vocabulary writes it."""
    data = tokenizer.token_bytes(token_id)
    if tokenizer.is_special(token_id):
        return data.decode()
    return "".join(VISIBLE[byte] for byte in data)


def test_fewest_tokens_never_promises_too_many(tokenizer: Tokenizer) -> None:
    texts = ["", "\x04" * 500, " " * 1000, "a", "hello world " * 50, "\u200b本" * 30, "<|im_end|>" * 9, "-" * 4096]
    for text in texts:
        actual = min(len(tokenizer.encode(text, True)), len(tokenizer.encode(text, False)))
        assert tokenizer.fewest_tokens(text) <= actual
    assert tokenizer.fewest_tokens("a " * 1_000_000) > 8192


def test_encoding_leaves_other_threads_running(tokenizer: Tokenizer) -> None:
    """Turns are counted only between the start and the end of the encoder's work: with the GIL held there are none."""
    text = "hello world, this is 42 tests. " * 4000
    started, ended = threading.Event(), threading.Event()

    def encode() -> None:
        started.set()
        tokenizer.encode(text, parse_special=True)
        ended.set()

    worker = threading.Thread(target=encode)
    worker.start()
    started.wait()
    turns = 0
    while not ended.is_set():
        turns += 1
        ended.wait(0.0005)
    worker.join()
    assert turns > 3


class TestSmallModels:
    def test_an_unknown_pre_tokenizer_is_named_at_start(self) -> None:
        with pytest.raises(TokenizerFileError, match="'falcon' is not supported; known are gpt-2"):
            Tokenizer(small_vocabulary([], pre_tokenizer="falcon"))

    @pytest.mark.parametrize(
        ("pre_tokenizer", "add_bos", "expected"),
        [
            ("gpt-2", None, False),
            ("gpt-2", True, True),
            ("llama-bpe", None, True),
            ("llama-bpe", False, False),
            ("qwen2", None, False),
        ],
    )
    def test_bos_comes_first_where_the_model_wants_it(
        self, pre_tokenizer: str, add_bos: bool | None, expected: bool
    ) -> None:
        tokenizer = Tokenizer(small_vocabulary(["<s>"], pre_tokenizer=pre_tokenizer, add_bos=add_bos))
        (letter,) = tokenizer.encode("a", parse_special=True)
        assert tokenizer.encode_prompt("a") == ([0, letter] if expected else [letter])
        assert tokenizer.encode_prompt("<s>a") == [0, letter]

    def test_user_defined_tokens_are_text_and_always_one_token(self) -> None:
        tokenizer = Tokenizer(small_vocabulary(["<s>"], user_defined=["<tool>"]))
        token_id = tokenizer.vocab_size - 1
        for parse_special in (True, False):
            assert tokenizer.encode("a<tool>", parse_special)[-1] == token_id
        assert not tokenizer.is_special(token_id)
        assert tokenizer.decode([token_id], skip_special_tokens=True) == "<tool>"

    def test_qwen_composes_characters_first(self) -> None:
        tokenizer = Tokenizer(small_vocabulary([], pre_tokenizer="qwen2"))
        assert tokenizer.encode("e\u0301", True) == tokenizer.encode("é", True)
        assert tokenizer.fewest_tokens("e\u0301" * 10) <= len(tokenizer.encode("e\u0301" * 10, True))
