"""From GGUF files to weights: exact values, the right order of rows, and every wrong file refused by name."""

from pathlib import Path

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from services.executor import gguf_file
from services.executor.checkpoint import Checkpoint, open_checkpoint
from services.executor.operations import ReferenceOperations
from services.executor.reading import half_split
from services.executor.rope_angles import inverse_frequencies
from services.executor.stored import StoredTensor, is_readable
from services.executor.weights import load_llama
from services.model_file import ModelFileError
from tests.unit.executor import tiny_llama
from tests.unit.executor.tiny_llama import Recipe

# The default model -------------------------------------------------------------------------------------------------


def test_the_default_model_is_read_as_it_is(default: Checkpoint) -> None:
    config = default.config
    assert (config.num_layers, config.hidden_size, config.ffn_size) == (30, 576, 1536)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.context_length, config.eos_token_ids) == (49152, 8192, (2,))
    assert config.kv_values_per_token == 11520
    assert config.norm_eps == pytest.approx(1e-5)
    assert len(default.tensors) == 272 and "output.weight" not in default.tensors


def test_the_rotary_frequencies_come_from_the_file(default: Checkpoint) -> None:
    config = default.config
    frequencies = inverse_frequencies(config.rope_base, config.head_dim)
    assert config.rope_base == 100_000
    expected = np.array([0.6978305848598664, 0.0031622776601683794, 1.4330125702369627e-05], np.float32)
    assert frequencies[[1, 16, 31]].tolist() == expected.tolist()


def test_quantized_values_are_exact(default: Checkpoint) -> None:
    query = default.tensors["blk.0.attn_q.weight"]
    assert query.raw[0, :20].tobytes().hex() == "0f30d8b9458765406f65164b677664502267655a"
    values = query.floats(0, 576)
    assert values[0, :4].tolist() == [-0.0963134765625, 0.1573486328125, -0.0963134765625, -0.73046875]
    assert values[1, :4].tolist() == [-0.1173095703125, -0.1173095703125, -0.19281005859375, 0.26019287109375]
    assert values.sum(dtype=np.float64) == 59.22322082519531
    assert np.square(values, dtype=np.float64).sum() == 26749.573275085306
    embedding = default.tensors["token_embd.weight"].floats(19556, 19557)
    assert embedding[0, :4].tolist() == [-0.0512237548828125, 0.0398406982421875, 0.0, 0.0853729248046875]


def test_rows_of_q_and_k_are_put_in_order(default: Checkpoint) -> None:
    for name, num_heads in (("blk.0.attn_q.weight", 9), ("blk.0.attn_k.weight", 3)):
        stored = default.tensors[name].floats(0, num_heads * 64)
        ordered = half_split(stored, num_heads)
        for row in range(len(stored)):
            head, j = divmod(row, 64)
            source = head * 64 + (2 * j if j < 32 else 2 * (j - 32) + 1)
            assert np.array_equal(ordered[row], stored[source])
    query = default.tensors["blk.0.attn_q.weight"].floats(0, 576)
    ordered = half_split(query, 9)
    assert [int(np.where((query == ordered[row]).all(1))[0][0]) for row in (1, 32, 64)] == [2, 1, 64]


# Every quantization ------------------------------------------------------------------------------------------------

QUANTIZATIONS = [kind.name for kind in GGMLQuantizationType if is_readable(kind)]


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_dequantization_is_that_of_the_gguf_package(name: str) -> None:
    quantization = GGMLQuantizationType[name]
    values_per_block, bytes_per_block = GGML_QUANT_SIZES[quantization]
    columns = 512
    raw = np.random.default_rng(0).integers(0, 256, (37, columns // values_per_block * bytes_per_block), np.uint8)
    stored = StoredTensor("some", (37, columns), quantization, raw)
    with np.errstate(all="ignore"):  # random bits hold infinities too
        expected = quants.dequantize(raw[3:30], quantization)
        assert np.array_equal(stored.floats(3, 30), expected.reshape(27, columns), equal_nan=True)


# Small files -------------------------------------------------------------------------------------------------------


def load(path: Path) -> None:
    load_llama(open_checkpoint(path), ReferenceOperations())


def test_a_header_is_read_past_its_arrays(tmp_path: Path) -> None:
    file = gguf_file.read(tiny_llama.write(tmp_path / "tiny.gguf", tiny_llama.random_weights()))
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.rope.freq_base"] == tiny_llama.ROPE_BASE
    assert "tokenizer.ggml.tokens" not in file.metadata
    assert file.tensors["blk.1.ffn_up.weight"].shape == (tiny_llama.FFN, tiny_llama.HIDDEN)


def test_missing_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    weights = tiny_llama.random_weights()
    weights["blk.2.attn_q.bias"] = weights.pop("blk.1.ffn_up.weight")
    with pytest.raises(
        ModelFileError, match=r"missing: \['blk\.1\.ffn_up\.weight'\].*unknown: \['blk\.2\.attn_q\.bias'\]"
    ):
        load(tiny_llama.write(tmp_path / "tiny.gguf", weights))


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    weights = tiny_llama.random_weights()
    weights["blk.0.attn_v.weight"] = weights["blk.0.attn_v.weight"][:-1]
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_v\.weight has shape \(31, 64\), not \(32, 64\)"):
        load(tiny_llama.write(tmp_path / "tiny.gguf", weights))


@pytest.mark.parametrize("key", ["rope.freq_base", "attention.layer_norm_rms_epsilon", "context_length", "block_count"])
def test_nothing_of_the_shape_is_assumed(tmp_path: Path, key: str) -> None:
    path = tiny_llama.write(tmp_path / "tiny.gguf", tiny_llama.random_weights(), Recipe(left_out=(key,)))
    with pytest.raises(ModelFileError, match=rf"the metadata has no llama\.{key}"):
        load(path)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe(architecture="gpt2"), "architecture is 'gpt2'"),
        (Recipe(rope_scaling="longrope"), "rope scaling of type 'longrope'"),
    ],
)
def test_what_the_model_cannot_express_is_refused(tmp_path: Path, recipe: Recipe, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        load(tiny_llama.write(tmp_path / "tiny.gguf", tiny_llama.random_weights(), recipe))


@pytest.mark.parametrize("size", [0, 3, 20, 300, 5000])
def test_a_cut_file_is_named(tmp_path: Path, size: int) -> None:
    path = tiny_llama.write(tmp_path / "tiny.gguf", tiny_llama.random_weights())
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelFileError, match=r"tiny\.gguf"):
        gguf_file.read(path)


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(200))
    with pytest.raises(ModelFileError, match="not a GGUF file"):
        gguf_file.read(path)
