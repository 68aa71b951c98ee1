"""`tandem models list | inspect | check` on the default model, and on models that are not as they should be."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from services.runtime import models
from services.runtime.models import DEFAULT_NAME, default_model
from tandem.cli import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["models", *arguments])


def json(*arguments: str) -> Any:
    done = run(*arguments, "--json")
    return msgspec.json.decode(done.stdout)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_models_of_this_machine_are_listed(tmp_path: Path, empty_cache: Path) -> None:
    shelf = tmp_path / "shelf"
    for folder in (shelf / "mine", empty_cache / "models--org--theirs" / "snapshots" / "0123"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(bytes(300))
    (shelf / "small.gguf").write_bytes(b"GGUF")
    found = {each["name"]: (each["kind"], each["num_bytes"]) for each in json("list", str(shelf))}
    assert found.pop(DEFAULT_NAME) == ("the embedded default", default_model().stat().st_size)
    assert found == {
        "org/theirs": ("in the hub's cache", 302),
        "mine": ("directory", 302),
        "small": ("GGUF", 4),
    }
    shown = run("list", str(shelf)).stdout
    assert "org/theirs" in shown and str(shelf / "small.gguf") in shown
    assert run("list", str(tmp_path / "nowhere")).exit_code == 2


def test_the_default_model_is_inspected() -> None:
    found = json("inspect", "--memory-mb", "1000")
    assert (found["family"], found["num_parameters"], found["num_layers"]) == ("llama", 134_515_008, 30)
    assert (found["num_heads"], found["num_kv_heads"], found["head_dim"]) == (9, 3, 64)
    assert (found["context_length"], found["stored_as"], found["format"]) == (8192, "Q4_1", "GGUF")
    assert found["kv_bytes_per_token"] == 23040 and found["weight_bytes"] == found["file_bytes"]
    assert found["tokens_that_fit"] == (1000 * 2**20 - found["weight_bytes"]) // 23040
    shown = run("inspect", "--precision", "exact", "--memory-mb", "10").stdout
    assert "134,515,008" in shown and "46,080 bytes a token" in shown and "0 in 10 MiB" in shown


def test_the_default_model_is_whole() -> None:
    done = run("check")
    assert done.exit_code == 0, done.output
    assert [line[:20].split(":")[0] for line in done.stdout.splitlines()] == [
        f"ok     {what}" for what in ("tensors", "tokenizer", "chat template", "forward pass")
    ]
    assert "'The capital of France is' goes on with ' Paris'" in done.stdout


def test_a_broken_model_is_found_wanting(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    findings = json("check", str(tmp_path))
    assert [finding["what"] for finding in findings if not finding["is_good"]] == ["tensors", "tokenizer"]
    assert run("check", str(tmp_path)).exit_code == 1
    refused = run("inspect", str(tmp_path))
    assert refused.exit_code == 2 and "neither model.safetensors" in refused.stderr


def test_a_model_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = run("inspect", "nowhere.gguf")
    assert refused.exit_code == 2 and refused.stderr == "tandem models: model.path: there is no nowhere.gguf\n"
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    assert "the default model is not installed" in run("check").stderr
