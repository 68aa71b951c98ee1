"""The incremental decoder: every case, delta by delta, and the oracle of all bytes decoded at once."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import tokenizers

from services.detokenizer.incremental import IncrementalDecoder, Tables, TokenTable
from services.tokenizer import Tokenizer

DATA = Path(__file__).parents[2] / "data" / "cases_text.jsonl"
CASES = [case for case in map(json.loads, DATA.read_text().splitlines()) if case["kind"] == "detok"]
STREAMS = [
    pytest.param(stream, id=f"{c['id']}-{i}") for c in CASES for i, stream in enumerate(c["data"].get("streams", []))
]


def decode(table: TokenTable, token_ids: list[int]) -> list[str]:
    """The text of each token, and at last of the flush."""
    decoder = IncrementalDecoder(table)
    return [*map(decoder.feed, token_ids), decoder.flush()]


def _table(tables: Tables, skip: bool) -> TokenTable:
    return tables.skipping if skip else tables.showing


def oracle(tables: Tables, token_ids: list[int], skip: bool) -> str:
    return b"".join(b"" if skip and i < 17 else tables.token_bytes[i] for i in token_ids).decode(errors="replace")


@pytest.mark.parametrize("stream", STREAMS)
def test_cases(tables: Tables, stream: dict[str, Any]) -> None:
    deltas = decode(_table(tables, stream.get("skip", True)), stream["ids"])
    assert "".join(deltas) == stream["text"]
    assert deltas == stream.get("deltas", deltas)


def test_a_character_begun_in_the_prompt_shows_as_a_replacement(tables: Tables) -> None:
    (data,) = [case["data"] for case in CASES if case["id"] == "C02"]
    text = "".join(decode(tables.skipping, data["output_ids"]))
    assert text == "\ufffd!" and text in data["allowed"]


@pytest.mark.parametrize("skip", [True, False])
def test_random_sequences_equal_the_oracle(tables: Tables, skip: bool) -> None:
    """Mostly tokens that are no whole characters, the rest from everywhere, special ones included."""
    draw = Random(20_000)
    partial = [i for i, whole in enumerate(tables.showing.texts) if whole is None]
    assert len(partial) == 313
    for _ in range(10_000):
        token_ids = [_draw_token(draw, partial) for _ in range(draw.randint(1, 12))]
        deltas = decode(_table(tables, skip), token_ids)
        assert "".join(deltas) == oracle(tables, token_ids, skip), token_ids
        # Nothing is taken back and nothing runs ahead: at each place the text is what those bytes are sure to be.
        place = draw.randint(0, len(token_ids))
        assert oracle(tables, token_ids[:place], skip).startswith("".join(deltas[:place])), token_ids


def _draw_token(draw: Random, partial: list[int]) -> int:
    if draw.random() < 0.8:
        return draw.choice(partial)
    return draw.randrange(17) if draw.random() < 0.3 else draw.randrange(49152)


def test_a_sample_equals_the_tokenizers_library(tokenizer: Tokenizer, tables: Tables) -> None:
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in plain]
    visible = {byte: chr(byte) for byte in plain} | {byte: chr(0x100 + order) for order, byte in enumerate(hidden)}
    texts = [
        tokenizer.token_bytes(i).decode() if i < 17 else "".join(visible[byte] for byte in tokenizer.token_bytes(i))
        for i in range(49152)
    ]
    reference = tokenizers.Tokenizer(tokenizers.models.BPE({text: i for i, text in enumerate(texts)}, []))
    reference.decoder = tokenizers.decoders.ByteLevel()
    reference.add_special_tokens(texts[:17])
    draw = Random(9)
    partial = [i for i, whole in enumerate(tables.showing.texts) if whole is None]
    for _ in range(2000):
        token_ids = [_draw_token(draw, partial) for _ in range(draw.randint(1, 12))]
        for skip in (True, False):
            expected = reference.decode(token_ids, skip_special_tokens=skip)
            assert "".join(decode(_table(tables, skip), token_ids)) == expected, token_ids


def test_bytes_that_continue_nothing_come_out_one_by_one(tables: Tables) -> None:
    """Ten thousand of them: none waits for the next, so the cost of each is the same."""
    alone = tables.token_bytes.index(b"\x91")
    assert decode(tables.skipping, [alone] * 10_000) == ["\ufffd"] * 10_000 + [""]


def test_empty_sequence_and_repeated_flush(tables: Tables) -> None:
    assert decode(tables.skipping, []) == [""]
    decoder = IncrementalDecoder(tables.skipping)
    assert decoder.feed(tables.token_bytes.index(b"\xe2")) == ""
    assert (decoder.flush(), decoder.flush()) == ("\ufffd", "")
