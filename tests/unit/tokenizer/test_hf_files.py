"""Tokenizers of Hugging Face directories: the same ids and bytes as from a GGUF file, and what cannot be served."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece

from services.tokenizer import Tokenizer, TokenizerFileError, bundle, load
from tests.unit.tokenizer.conftest import small_vocabulary
from tests.unit.tokenizer.test_bundle import TEXTS

CHAT = [{"role": "user", "content": "Hi <|im_end|> there"}]


def write(folder: Path, files: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


@pytest.fixture(scope="module")
def files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Of the default model."""
    return dict(bundle.files(tokenizer, 8192))


@pytest.fixture(scope="module")
def loaded(files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(write(tmp_path_factory.mktemp("model"), files))


def test_ids_are_those_of_the_gguf_file(tokenizer: Tokenizer, loaded: Tokenizer) -> None:
    draw = Random(3)
    random_texts = ["".join(draw.choices(["a", " ", "19", "é", "<|im_end|>", "\n", "本"], k=12)) for _ in range(100)]
    for text in [*TEXTS, *random_texts]:
        for parse_special in (True, False):
            assert loaded.encode(text, parse_special) == tokenizer.encode(text, parse_special), text
        assert loaded.encode_prompt(text) == tokenizer.encode_prompt(text)
        assert loaded.fewest_tokens(text) == tokenizer.fewest_tokens(text)
    assert loaded.encode_chat(CHAT) == tokenizer.encode_chat(CHAT)


def test_tokens_are_those_of_the_gguf_file(tokenizer: Tokenizer, loaded: Tokenizer) -> None:
    assert (loaded.vocab_size, loaded.eos_token_ids) == (tokenizer.vocab_size, tokenizer.eos_token_ids)
    for token_id in range(loaded.vocab_size):
        assert loaded.token_bytes(token_id) == tokenizer.token_bytes(token_id)
        assert loaded.is_special(token_id) == tokenizer.is_special(token_id)


def test_a_directory_is_handed_on_as_it_is(files: dict[str, bytes], loaded: Tokenizer) -> None:
    again = bundle.files(loaded, 8192)
    assert again["tokenizer.json"] == files["tokenizer.json"]
    assert json.loads(again["tokenizer_config.json"]) == json.loads(files["tokenizer_config.json"])


class TestSmallOnes:
    """Made of few tokens."""

    def of(self, tmp_path: Path, changes: dict[str, Any] | None = None, **options: Any) -> Tokenizer:
        """A tokenizer of bytes with a beginning and an end; changes: of files."""
        made = dict(bundle.files(Tokenizer(small_vocabulary(["<s>", "</s>"], **options)), 128))
        return load(write(tmp_path / "model", {**made, **(changes or {})}))

    def test_the_beginning_comes_from_the_post_processor(self, tmp_path: Path) -> None:
        tokenizer = self.of(tmp_path, add_bos=True)
        assert tokenizer.prompt_prefix == [0] and tokenizer.encode_prompt("a")[0] == 0

    @pytest.mark.parametrize(
        ("changes", "ends"),
        [
            ({"generation_config.json": {"eos_token_id": [1, 0, 1]}}, (1, 0)),
            ({"generation_config.json": {}, "config.json": {"eos_token_id": 1}}, (1,)),
            ({"generation_config.json": {}, "config.json": {}, "tokenizer_config.json": {"eos_token": "</s>"}}, (1,)),
        ],
    )
    def test_ends_come_from_the_first_file_that_says(
        self, tmp_path: Path, changes: dict[str, Any], ends: tuple[int, ...]
    ) -> None:
        assert self.of(tmp_path, changes).eos_token_ids == ends

    def test_advised_sampling_is_told(self, tmp_path: Path) -> None:
        advice = {"temperature": 0.6, "top_k": 20, "max_length": 5, "do_sample": True}
        advised = self.of(tmp_path, {"generation_config.json": advice}).advised_sampling
        assert advised == {"temperature": 0.6, "top_k": 20}
        greedy = self.of(tmp_path, {"generation_config.json": {"temperature": 0.6, "do_sample": False}})
        assert greedy.advised_sampling == {"temperature": 0.0}

    @pytest.mark.parametrize(
        "changes",
        [
            {"tokenizer_config.json": {"chat_template": "{{ bos_token }}x{{ pad_token }}", "pad_token": "</s>"}},
            {"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "<s>x</s>"}]}},
            {"chat_template.jinja": b"<s>x</s>", "tokenizer_config.json": {"chat_template": "nothing"}},
            {"chat_template.json": {"chat_template": "<s>x</s>"}},
        ],
    )
    def test_the_chat_template_is_found(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        tokenizer = self.of(tmp_path, changes)
        [x] = tokenizer.encode("x", parse_special=False)
        assert tokenizer.encode_chat(CHAT) == [0, x, 1]

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"tokenizer.json": b"{"}, r"tokenizer\.json: no JSON"),
            ({"tokenizer.json": {"model": {"type": "Unigram", "vocab": []}}}, "'Unigram'; only BPE"),
            ({"tokenizer.json": {"model": {"type": "BPE", "vocab": {"a": 0}}}}, "neither byte-level"),
            ({"generation_config.json": {"top_p": 0}}, r"generation_config\.json: top_p is 0, not between"),
            ({"generation_config.json": {"eos_token_id": 9999}}, "the end token 9999 is outside"),
            ({"generation_config.json": {"eos_token_id": "</s>"}}, "neither an id nor a list"),
            ({"tokenizer_config.json": {"chat_template": 5}}, r"tokenizer_config\.json: chat_template is int"),
            ({"chat_template.jinja": b"{% if"}, "chat_template, line 1"),
        ],
    )
    def test_what_cannot_be_served_is_named(self, tmp_path: Path, changes: dict[str, Any], named: str) -> None:
        with pytest.raises(TokenizerFileError, match=named):
            self.of(tmp_path, changes)


def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerFileError, match=r"tokenizer\.json: No such file"):
        load(tmp_path)


def test_a_vocabulary_that_falls_back_to_bytes(tmp_path: Path) -> None:
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab"]
    ids = {text: token_id for token_id, text in enumerate(texts)}
    reference = tokenizers.Tokenizer(
        BPE(ids, [("▁", "a"), ("a", "b")], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    reference.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    reference.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    reference.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    reference.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer = load(
        write(tmp_path, {"tokenizer.json": reference.to_str().encode(), "config.json": {"eos_token_id": 2}})
    )
    for text in ("ab a", "é b", "a\n本", "", "</s>a"):
        token_ids = reference.encode(text).ids
        assert tokenizer.encode_prompt(text) == token_ids
        # The library drops the space that was put before the text; tokens here stand for what they stand for.
        assert tokenizer.decode(token_ids, skip_special_tokens=True).removeprefix(" ") == reference.decode(token_ids)
        assert tokenizer.fewest_tokens(text) <= len(token_ids)
    assert tokenizer.encode("</s>a", parse_special=False)[0] != 2


def test_other_kinds_of_models_are_named(tmp_path: Path) -> None:
    other = tokenizers.Tokenizer(WordPiece({"a": 0}, unk_token="a"))
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(TokenizerFileError, match="'WordPiece'; only BPE is served"):
        load(write(tmp_path, {"tokenizer.json": other.to_str().encode()}))


def test_a_part_that_the_library_does_not_know_is_named(tmp_path: Path) -> None:
    unknown = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "pre_tokenizer": _unknown_part()}
    with pytest.raises(TokenizerFileError, match=r"tokenizer\.json: data did not match any variant"):
        load(write(tmp_path, {"tokenizer.json": unknown}))


_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _unknown_part() -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [_BYTE_LEVEL, {"type": "OfTomorrow"}]}


def test_tokens_put_behind_a_text_are_refused_not_taken_for_its_beginning(tmp_path: Path) -> None:
    reference = tokenizers.Tokenizer(BPE({"a": 0, "</s>": 1}, []))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel()
    reference.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    with pytest.raises(TokenizerFileError, match=r"\[0\] becomes \[0, 1\], where at most one token before"):
        load(write(tmp_path, {"tokenizer.json": reference.to_str().encode(), "config.json": {"eos_token_id": 1}}))
