"""The tokenizer as Hugging Face files: whoever loads them gets the ids, the texts and the template that are served."""

import json
from random import Random

import pytest
import tokenizers

from services.tokenizer import Tokenizer, bundle
from tests.unit.tokenizer.conftest import small_vocabulary
from tests.unit.tokenizer.test_tokenizer import CASES, PROMPTS

TEXTS = [
    *(text for case in ("C44", "C45") for text in CASES[case]["texts"]),
    *(prompt[key] for prompt in PROMPTS for key in ("prompt", "text") if key in prompt),
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "a  1\n\n  42\t007 ½ ٣ 漢字 👩‍👧 e\u0301 \u200b <|im_st art|> <|endoftext|>x",
    " leading", "trailing ", "", "\r\n", "a\x00b",
]  # fmt: skip


@pytest.fixture(scope="module")
def loaded(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(bundle.files(tokenizer, 8192)["tokenizer.json"].decode())


@pytest.mark.parametrize("text", TEXTS)
def test_the_files_make_the_same_ids(tokenizer: Tokenizer, loaded: tokenizers.Tokenizer, text: str) -> None:
    assert loaded.encode(text).ids == tokenizer.encode_prompt(text)


def test_the_files_make_the_same_ids_of_any_text(tokenizer: Tokenizer, loaded: tokenizers.Tokenizer) -> None:
    draw = Random(11)
    pieces = [
        "a",
        "B",
        " ",
        "  ",
        "\n",
        "\t",
        "0",
        "19",
        "'s",
        "é",
        "ß",
        "本語",
        "👩‍👧",
        "\u0301",
        "<|im_end|>",
        "<|",
        "|>",
    ]
    for _ in range(500):
        text = "".join(draw.choices(pieces, k=draw.randint(0, 30)))
        assert loaded.encode(text).ids == tokenizer.encode_prompt(text)


def test_the_files_decode_to_the_same_text(tokenizer: Tokenizer, loaded: tokenizers.Tokenizer) -> None:
    draw = Random(12)
    for _ in range(200):
        ids = draw.choices(range(tokenizer.vocab_size), k=20)
        for skips in (True, False):
            assert loaded.decode(ids, skip_special_tokens=skips) == tokenizer.decode(ids, skip_special_tokens=skips)


def test_every_id_is_there_and_the_special_ones_are_marked(tokenizer: Tokenizer, loaded: tokenizers.Tokenizer) -> None:
    assert loaded.get_vocab_size(with_added_tokens=True) == tokenizer.vocab_size
    special = {token_id for token_id, added in loaded.get_added_tokens_decoder().items() if added.special}
    assert special == {i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)}


def test_the_configs_name_the_ends_the_template_and_the_family(tokenizer: Tokenizer) -> None:
    files = {name: json.loads(content) for name, content in bundle.files(tokenizer, 512).items()}
    assert tokenizer.chat_template is not None
    assert files["tokenizer_config.json"]["chat_template"] == tokenizer.chat_template.source
    assert files["tokenizer_config.json"]["eos_token"] == "<|im_end|>"
    assert files["tokenizer_config.json"]["model_max_length"] == 512
    assert files["generation_config.json"] == {"eos_token_id": list(tokenizer.eos_token_ids)}
    assert files["config.json"]["model_type"] == "llama"
    assert files["config.json"]["architectures"] == ["LlamaForCausalLM"]
    assert files["config.json"]["max_position_embeddings"] == 512


def test_the_same_tokenizer_gives_the_same_bytes(tokenizer: Tokenizer) -> None:
    assert bundle.files(tokenizer, 8192) == bundle.files(tokenizer, 8192)


@pytest.mark.parametrize("add_bos", [True, False])
def test_a_model_that_wants_its_bos_gets_it_from_the_files_too(add_bos: bool) -> None:
    tokenizer = Tokenizer(small_vocabulary(["<s>"], pre_tokenizer="llama-bpe", add_bos=add_bos))
    loaded = tokenizers.Tokenizer.from_str(bundle.files(tokenizer, 64)["tokenizer.json"].decode())
    assert loaded.encode("a b").ids == tokenizer.encode_prompt("a b")
    assert (loaded.encode("a").ids[0] == tokenizer.special_id("<s>")) is add_bos


def test_tokens_that_users_define_and_a_normalizer_survive() -> None:
    for vocabulary in (
        small_vocabulary(["<s>"], user_defined=["<tool>"]),
        small_vocabulary([], pre_tokenizer="qwen2"),
    ):
        tokenizer = Tokenizer(vocabulary)
        loaded = tokenizers.Tokenizer.from_str(bundle.files(tokenizer, 64)["tokenizer.json"].decode())
        for text in ("a<tool>b", "e\u0301a", "<s>a"):
            assert loaded.encode(text).ids == tokenizer.encode_prompt(text)


def test_a_model_without_a_template_has_none_in_its_files() -> None:
    files = bundle.files(Tokenizer(small_vocabulary(["<s>"])), 64)
    assert "chat_template" not in json.loads(files["tokenizer_config.json"])
