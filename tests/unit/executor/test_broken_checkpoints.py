"""Directories that cannot be served: the error names the file, the tensor or key, and what was expected."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.executor.checkpoint import open_checkpoint
from services.model_file import ModelFileError
from tests.unit.executor import tiny_llama

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
Damage = Callable[[Path], Any]


def tensors() -> dict[str, torch.Tensor]:
    found = {"model.embed_tokens.weight": torch.zeros(50, 64), "model.norm.weight": torch.zeros(64)}
    shapes = {
        "input_layernorm": (64,),
        "self_attn.q_proj": (128, 64),
        "self_attn.k_proj": (64, 64),
        "self_attn.v_proj": (64, 64),
        "self_attn.o_proj": (64, 128),
        "self_attn.q_norm": (32,),
        "self_attn.k_norm": (32,),
        "post_attention_layernorm": (64,),
        "mlp.gate_proj": (96, 64),
        "mlp.up_proj": (96, 64),
        "mlp.down_proj": (64, 96),
    }
    for layer in range(2):
        found |= {f"model.layers.{layer}.{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good checkpoint of two shards."""
    everything = tensors()
    shards = {
        FIRST: {name: values for name, values in everything.items() if "layers.1" not in name},
        SECOND: {name: values for name, values in everything.items() if "layers.1" in name},
    }
    for name, shard in shards.items():
        save_file(shard, tmp_path / name)
    places = {name: file for file, shard in shards.items() for name in shard}
    write_json(tmp_path / INDEX, {"weight_map": places})
    write_json(tmp_path / "config.json", CONFIG)
    write_json(tmp_path / "tokenizer.json", {"model": {"vocab": {"a": 0, "b": 49}}, "added_tokens": []})
    return tmp_path


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def config(**changes: Any) -> Damage:
    """Other values in config.json; None takes a key away."""

    def damage(folder: Path) -> None:
        values = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
        write_json(folder / "config.json", values)

    return damage


def shard(change: Callable[[dict[str, torch.Tensor]], Any], is_listed: bool = True) -> Damage:
    """Other tensors in the second shard; is_listed: the index agrees."""

    def damage(folder: Path) -> None:
        held = load_file(folder / SECOND)
        change(held)
        save_file(held, folder / SECOND)
        if is_listed:
            places = json.loads((folder / INDEX).read_text())["weight_map"]
            places = {name: place for name, place in places.items() if place != SECOND}
            write_json(folder / INDEX, {"weight_map": places | dict.fromkeys(held, SECOND)})

    return damage


def put(name: str, values: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda held: held.update({f"model.layers.1.{name}": values})


def take(name: str) -> Callable[[dict[str, torch.Tensor]], Any]:
    return lambda held: held.pop(f"model.layers.1.{name}")


def cut(name: str, size: int) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def table(entry: dict[str, Any]) -> Damage:
    """A second shard whose table has one entry."""
    text = json.dumps({"model.norm.weight": entry}).encode()
    return lambda folder: (folder / SECOND).write_bytes(struct.pack("<Q", len(text)) + text + bytes(256))


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), r"the directory has no config\.json"),
    "config cut": (cut("config.json", 30), r"config\.json: no JSON"),
    "config of another kind": (lambda f: write_json(f / "config.json", []), "a JSON object was expected, not list"),
    "unknown architecture": (config(model_type="gpt2"), r"config\.json: model_type is 'gpt2'; the families served are"),
    "no architecture": (config(model_type=None), "model_type is None"),
    "no rope base": (config(rope_theta=None), r"config\.json: rope_theta is missing"),
    "no eps": (config(rms_norm_eps=None), "rms_norm_eps is missing"),
    "no layers": (config(num_hidden_layers=None), "num_hidden_layers is missing"),
    "size of another type": (config(hidden_size="64"), "hidden_size is '64', not an integer"),
    "size of nothing": (config(vocab_size=0), "vocab_size is 0"),
    "rope scaling": (config(rope_scaling={"type": "longrope"}), "rope scaling of type 'longrope' is not supported"),
    "rope scaling of another type": (config(rope_scaling="linear"), "rope_scaling is 'linear', not an object"),
    "heads that do not share": (config(num_attention_heads=9, num_key_value_heads=4), "9 heads cannot share 4 heads"),
    "rope factor": (config(rope_scaling={"type": "linear"}), "factor is missing"),
    "part of a head": (config(partial_rotary_factor=0.5), r"partial_rotary_factor is 0\.5"),
    "activation": (config(hidden_act="gelu"), "hidden_act is 'gelu', not 'silu'"),
    "window": (config(use_sliding_window=True), "sliding_window is missing"),
    "no weights": (lambda f: (f / INDEX).unlink(), r"neither model\.safetensors nor model\.safe"),
    "missing shard": (lambda f: (f / SECOND).unlink(), f"1 of 2 shards are missing: {SECOND}"),
    "shard cut in its table": (cut(SECOND, 100), f"{SECOND}: no safetensors file"),
    "shard cut in its values": (cut(SECOND, 9000), rf"{SECOND}: tensor .*: the file was cut"),
    "empty shard": (cut(SECOND, 0), f"{SECOND}: no safetensors file: cannot mmap an empty file"),
    "index that leads elsewhere": (
        lambda f: write_json(f / INDEX, {"weight_map": {"x": "../x"}}),
        "weight_map is no table of names of files",
    ),
    "index of another kind": (lambda f: write_json(f / INDEX, {}), "weight_map is no table of names of files"),
    "tensor elsewhere": (shard(put("new", torch.zeros(2)), is_listed=False), r"\.1\.new: .* in None"),
    "tensor lost": (
        shard(take("mlp.up_proj.weight"), is_listed=False),
        rf"{SECOND}: tensor model\.layers\.1\.mlp\.up_proj\.weight is not there",
    ),
    "tensor missing": (shard(take("mlp.up_proj.weight")), r"missing: \['.*\.1\.mlp\.up_proj\.weight'\]; .*none"),
    "stray tensor": (shard(put("self_attn.q_proj.bias", torch.zeros(128))), r"unknown: \['.*\.1\.self_attn\.q"),
    "wrong shape": (
        shard(put("mlp.up_proj.weight", torch.zeros(95, 64))),
        rf"{SECOND}: tensor model\.layers\.1\.mlp\.up_proj\.weight has shape \(95, 64\), not \(96, 64\)",
    ),
    "dtype": (shard(put("mlp.up_proj.weight", torch.zeros(96, 64).to(torch.int8))), "its dtype is I8; F32"),
    "bytes": (table({"dtype": "F32", "shape": [64], "data_offsets": [0, 255]}), r"255 bytes are no F32 of shape"),
    "entry": (table({"dtype": "F32"}), r"tensor model\.norm\.weight: 'shape'"),
    "tokens": (
        lambda f: write_json(f / "tokenizer.json", {"model": {"vocab": {"a": 0, "b": 50}}}),
        r"tokenizer\.json: 51 tokens, where the weights have rows for 50",
    ),
    "end token": (config(eos_token_id=50), "the end token 50 is none of the weights' 50"),
}  # fmt: skip


def test_a_good_one_is_opened(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert checkpoint.num_parameters == sum(values.numel() for values in tensors().values())
    assert checkpoint.num_bytes == 4 * checkpoint.num_parameters and checkpoint.stored_as == "F32"
    assert (checkpoint.config.family, checkpoint.config.head_norms, checkpoint.config.has_head) == (
        "qwen3",
        True,
        False,
    )


@pytest.mark.parametrize("name", DAMAGES)
def test_a_broken_one_is_named(folder: Path, name: str) -> None:
    damage, named = DAMAGES[name]
    damage(folder)
    with pytest.raises(ModelFileError, match=named) as raised:
        open_checkpoint(folder)
    assert str(folder) in str(raised.value)


def test_old_frequencies_and_a_head_that_is_the_embedding_mean_nothing(folder: Path) -> None:
    shard(put("self_attn.rotary_emb.inv_freq", torch.zeros(16)))(folder)
    shard(lambda held: held.update({"lm_head.weight": torch.zeros(50, 64)}))(folder)
    assert not open_checkpoint(folder).config.has_head


def test_a_head_is_there_when_only_the_weights_say_so(folder: Path) -> None:
    config(tie_word_embeddings=None)(folder)
    assert not open_checkpoint(folder).config.has_head
    shard(lambda held: held.update({"lm_head.weight": torch.zeros(50, 64)}))(folder)
    assert open_checkpoint(folder).config.has_head


@pytest.mark.parametrize("number", [26, 28, 99])
def test_a_gguf_tensor_of_a_type_that_cannot_be_read_is_named(tmp_path: Path, number: int) -> None:
    path = tiny_llama.write(tmp_path / "tiny.gguf", tiny_llama.random_weights())
    name = b"blk.1.attn_norm.weight"
    content = path.read_bytes()
    at = content.index(name) + len(name) + 4 + 8  # past the number of dimensions, and the one
    path.write_bytes(content[:at] + struct.pack("<I", number) + content[at + 4 :])
    with pytest.raises(
        ModelFileError, match=r"tiny\.gguf: tensor blk\.1\.attn_norm\.weight: .*(unknown|cannot be read)"
    ):
        open_checkpoint(path)
