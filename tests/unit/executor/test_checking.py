"""Findings about models that open and are wrong all the same: what each says, and that the rest is tried too."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from services.executor.checking import Finding, check
from services.executor.checkpoint import open_checkpoint
from services.executor.inspection import inspect
from services.tokenizer import Tokenizer, bundle, load
from tests.unit.executor.test_broken_checkpoints import CONFIG, tensors, write_json
from tests.unit.tokenizer.conftest import small_vocabulary

VOCAB = 300
NO_END = {**CONFIG, "vocab_size": VOCAB, "eos_token_id": None}
ENDS = {"generation_config.json": {"eos_token_id": [0]}}


def write(folder: Path, files: dict[str, Any], embedding: float = 0.1, dtype: torch.dtype = torch.float32) -> Path:
    """A model of two layers and a tokenizer of bytes; files: written over its own."""
    for name, content in bundle.files(Tokenizer(small_vocabulary(["<s>"])), 64).items():
        (folder / name).write_bytes(content)
    for name, value in {"config.json": {**CONFIG, "vocab_size": VOCAB}, **ENDS, **files}.items():
        write_json(folder / name, value)
    weights = tensors() | {"model.embed_tokens.weight": torch.full((VOCAB, 64), embedding)}
    save_file({name: values.to(dtype) for name, values in weights.items()}, folder / "model.safetensors")
    return folder


def wrong(folder: Path) -> list[Finding]:
    return [finding for finding in check(folder) if not finding.is_good]


def test_an_end_that_only_the_tokenizer_names_is_an_end_for_both_sides(tmp_path: Path) -> None:
    files = {"generation_config.json": {}, "config.json": NO_END, "tokenizer_config.json": {"eos_token": "<s>"}}
    assert wrong(write(tmp_path, files)) == []
    assert open_checkpoint(tmp_path).config.eos_token_ids == load(tmp_path).eos_token_ids == (0,)


def test_a_good_one_has_four_good_findings(tmp_path: Path) -> None:
    findings = list(check(write(tmp_path, {})))
    assert [finding.what for finding in findings] == ["tensors", "tokenizer", "chat template", "forward pass"]
    assert all(finding.is_good for finding in findings), findings
    assert findings[2].detail == "none: conversations are refused"


@pytest.mark.parametrize(
    ("files", "embedding", "what", "detail"),
    [
        ({}, torch.nan, "forward pass", "logits are not finite"),
        (
            {"generation_config.json": {}, "config.json": NO_END, "tokenizer_config.json": {}},
            0.1,
            "tokenizer",
            "no token",
        ),
        ({"tokenizer_config.json": {"chat_template": "{{ nobody.nothing }}"}}, 0.1, "chat template", "refuses"),
        ({"tokenizer.json": {"model": {"type": "Unigram"}}}, 0.1, "tokenizer", "only BPE is served"),
    ],
)
def test_what_is_wrong_is_found(
    tmp_path: Path, files: dict[str, Any], embedding: float, what: str, detail: str
) -> None:
    [finding] = wrong(write(tmp_path, files, embedding))
    assert finding.what == what and detail in finding.detail


@pytest.mark.parametrize(
    ("precision", "weight_bytes", "kv_bytes"), [("exact", 4, 4), ("bfloat16", 2, 2), ("float16", 2, 2)]
)
def test_memory_is_that_of_the_precision(tmp_path: Path, precision: str, weight_bytes: int, kv_bytes: int) -> None:
    found = inspect(write(tmp_path, {}, dtype=torch.bfloat16), precision, memory_bytes=10_000_000)
    assert (found.stored_as, found.file_bytes) == ("BF16", 2 * found.num_parameters)
    assert found.weight_bytes == weight_bytes * (found.num_parameters + VOCAB * 64)  # the head is held by itself
    assert found.kv_bytes_per_token == 2 * 2 * 2 * 32 * kv_bytes
    assert found.tokens_that_fit == (10_000_000 - found.weight_bytes) // found.kv_bytes_per_token


def test_the_kernels_hold_eight_bits_of_what_was_not_quantized(tmp_path: Path) -> None:
    found = inspect(write(tmp_path, {}), "fast", memory_bytes=0)
    assert found.weight_bytes == pytest.approx(found.num_parameters * 34 / 32, rel=0.02)
    assert found.tokens_that_fit == 0
