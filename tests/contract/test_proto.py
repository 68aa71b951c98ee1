"""The public contract: committed stubs are the generated ones, lint is clean, every field has its word."""

import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor

from tandem.v1 import chat_pb2, common_pb2, control_pb2, errors_pb2, inference_pb2, models_pb2

ROOT = Path(__file__).parents[2]
PROTOS = sorted((ROOT / "proto/tandem/v1").glob("*.proto"))
FILES = (chat_pb2, common_pb2, control_pb2, errors_pb2, inference_pb2, models_pb2)
KNOBS = (common_pb2.Sampling, common_pb2.Stopping, common_pb2.Output)
OPTIONS = ("go_package", "java_package", "csharp_namespace")


def compile_protos(*arguments: str) -> None:
    # A process of its own: the compiler keeps what it has read.
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", *arguments, *map(str, PROTOS)]
    subprocess.run(command, check=True)


def test_committed_stubs_are_the_generated_ones(tmp_path: Path) -> None:
    assert PROTOS
    compile_protos(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}")
    made = {path.name: path.read_text() for path in (tmp_path / "tandem/v1").iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "tandem/v1").glob("*_pb2*")}
    assert made.keys() == kept.keys()
    assert [name for name, text in made.items() if kept[name] != text] == []


def test_the_committed_protoset_is_the_generated_one(tmp_path: Path) -> None:
    out = tmp_path / "tandem.protoset"
    compile_protos("--include_imports", f"--descriptor_set_out={out}")
    kept = ROOT / "proto/tandem.protoset"
    assert out.read_bytes() == kept.read_bytes(), (
        "make proto, or: python -m grpc_tools.protoc -I proto --include_imports "
        "--descriptor_set_out=proto/tandem.protoset proto/tandem/v1/*.proto"
    )


def test_lint_is_clean() -> None:
    buf = Path(sysconfig.get_path("scripts")) / "buf"
    done = subprocess.run([buf, "lint"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


def test_everything_public_is_commented(tmp_path: Path) -> None:
    out = tmp_path / "set.pb"
    compile_protos("--include_source_info", f"--descriptor_set_out={out}")
    bare = [
        f"{file.name}: {path}"
        for file in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
        for path in uncommented(file)
    ]
    assert bare == []


def uncommented(file: descriptor_pb2.FileDescriptorProto) -> Iterable[str]:
    """Messages, fields, enums, values, services and methods that have no comment of their own."""
    noted = {tuple(place.path) for place in file.source_code_info.location if place.leading_comments.strip()}
    named: dict[tuple[int, ...], str] = {}
    for m, message in enumerate(file.message_type):
        named[4, m] = message.name
        named |= {(4, m, 2, f): f"{message.name}.{field.name}" for f, field in enumerate(message.field)}
    for e, enum in enumerate(file.enum_type):
        named[5, e] = enum.name
        named |= {(5, e, 2, v): f"{enum.name}.{value.name}" for v, value in enumerate(enum.value)}
    for s, service in enumerate(file.service):
        named[6, s] = service.name
        named |= {(6, s, 2, m): f"{service.name}.{method.name}" for m, method in enumerate(service.method)}
    return [name for path, name in named.items() if path not in noted]


@pytest.mark.parametrize("descriptor", [knobs.DESCRIPTOR for knobs in KNOBS], ids=lambda descriptor: descriptor.name)
def test_absent_and_zero_differ_for_every_knob(descriptor: Descriptor) -> None:
    assert [field.name for field in descriptor.fields if not (field.has_presence or field.is_repeated)] == []


def test_every_file_names_its_package_for_other_languages() -> None:
    for file in FILES:
        options = descriptor_pb2.FileOptions.FromString(file.DESCRIPTOR.GetOptions().SerializeToString())
        assert all(getattr(options, name) for name in OPTIONS), file.DESCRIPTOR.name


def test_enums_begin_unspecified() -> None:
    for file in FILES:
        for enum in file.DESCRIPTOR.enum_types_by_name.values():
            assert enum.values_by_number[0].name.endswith("_UNSPECIFIED")
