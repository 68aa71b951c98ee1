"""The header reader against files written, and read, by the `gguf` package."""

from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFWriter

from services.model_file import GgufError, read_header


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "all-types.gguf"
    writer = GGUFWriter(path, "llama")
    for number, bits in ((200, 8), (60_000, 16), (4_000_000_000, 32), (2**63 + 1, 64)):
        getattr(writer, f"add_uint{bits}")(f"u{bits}", number)
    for number, bits in ((-100, 8), (-30_000, 16), (-2_000_000_000, 32), (-(2**62), 64)):
        getattr(writer, f"add_int{bits}")(f"i{bits}", number)
    writer.add_float32("f32", 0.25)
    writer.add_float64("f64", 1e-300)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("empty", "")
    writer.add_string("text", "Zürich \x00 本")
    writer.add_array("texts", ["a", "", "Ġthe", "本"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.0])
    writer.add_array("flags", [True, False])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_value_is_what_the_gguf_package_reads(written: Path) -> None:
    metadata = read_header(written).metadata
    reference = {name: field.contents() for name, field in GGUFReader(written).fields.items() if "GGUF." not in name}
    assert metadata == reference
    assert metadata["text"] == "Zürich \x00 本" and metadata["yes"] is True and metadata["numbers"] == [1, -2, 3]


def test_a_file_cut_anywhere_in_its_header_is_refused_by_name(written: Path, tmp_path: Path) -> None:
    whole = written.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in range(0, len(whole) - 40, 7):
        cut.write_bytes(whole[:size])
        with pytest.raises(GgufError, match=r"cut\.gguf"):
            read_header(cut)


@pytest.mark.parametrize("head", [b"GGML" + b"\0" * 60, b"GGUF\x01\0\0\0" + b"\0" * 60, b"GGUF\0\0\0\x03" + b"\0" * 60])
def test_another_format_or_version_is_refused(head: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(head)
    with pytest.raises(GgufError, match="GGUF file of version"):
        read_header(path)


def test_a_missing_file_is_an_error_for_the_operator(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"nowhere\.gguf"):
        read_header(tmp_path / "nowhere.gguf")


def test_an_unknown_value_type_is_refused(written: Path, tmp_path: Path) -> None:
    broken = bytearray(written.read_bytes())
    key = broken.index(b"yes")
    broken[key + 3] = 77  # the type that follows the key
    path = tmp_path / "odd.gguf"
    path.write_bytes(broken)
    with pytest.raises(GgufError, match="value type 77"):
        read_header(path)
