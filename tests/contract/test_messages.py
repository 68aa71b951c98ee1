"""The bytes of every message: as they always were, readable by older and by newer peers, and nothing else accepted."""

import inspect
import json
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from services.wire import codec, messages
from services.wire.topology import LINKS, SUBMIT, Link
from tests.contract import examples

EXAMPLES = examples.messages()
UNIONS = {link.name: link.union for link in LINKS}
GOLDEN: dict[str, str] = json.loads(examples.GOLDEN.read_text())


def _decode(name: str, data: bytes) -> Any:
    return codec.decoder(UNIONS[name.split("/")[0]]).decode(data)


def _structs(value: Any) -> list[Struct]:
    """All structs inside a value, itself included."""
    if isinstance(value, tuple):
        return [struct for item in value for struct in _structs(item)]
    if isinstance(value, Struct):
        return [value, *_structs(tuple(getattr(value, field) for field in value.__struct_fields__))]
    return []


def _tags(link: Link[Any]) -> list[int]:
    tags = [struct.__struct_config__.tag for struct in examples.structs_of(link.union)]
    return [tag for tag in tags if isinstance(tag, int)]


def test_every_message_has_golden_bytes_and_every_golden_bytes_a_message() -> None:
    assert GOLDEN.keys() == EXAMPLES.keys()


def test_every_struct_of_the_wire_is_inside_an_example() -> None:
    declared = {kind for _, kind in inspect.getmembers(messages, inspect.isclass) if issubclass(kind, Struct)}
    assert {type(struct) for struct in _structs(tuple(EXAMPLES.values()))} == declared


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_sets_every_field_to_something_else_than_its_default(name: str) -> None:
    for struct in _structs(EXAMPLES[name]):
        for field in msgspec.structs.fields(struct):
            assert getattr(struct, field.name) != field.default, f"{type(struct).__name__}.{field.name}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_bytes_are_the_golden_ones(name: str) -> None:
    assert codec.encode(EXAMPLES[name]).hex() == GOLDEN[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_bytes_are_read_back_whole(name: str) -> None:
    assert _decode(name, bytes.fromhex(GOLDEN[name])) == EXAMPLES[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_older_reader_accepts_a_newer_writer(name: str) -> None:
    fields = msgspec.msgpack.decode(codec.encode(EXAMPLES[name]))
    newer = msgspec.msgpack.encode([*fields, "appended by a later version", 7])
    assert _decode(name, newer) == EXAMPLES[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_newer_reader_fills_in_what_an_older_writer_did_not_know(name: str) -> None:
    message = EXAMPLES[name]
    required = sum(field.required for field in msgspec.structs.fields(message))
    fields = msgspec.msgpack.decode(codec.encode(message))
    older = _decode(name, msgspec.msgpack.encode(fields[: 1 + required]))  # the tag comes first
    for index, field in enumerate(msgspec.structs.fields(message)):
        expected = getattr(message, field.name) if index < required else field.default
        assert getattr(older, field.name) == expected, field.name


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_an_unknown_tag_is_refused(link: Link[Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        codec.decoder(link.union).decode(msgspec.msgpack.encode([len(_tags(link))]))


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_tags_are_small_numbers_used_once(link: Link[Any]) -> None:
    assert sorted(_tags(link)) == list(range(len(_tags(link))))


@pytest.mark.parametrize("name", EXAMPLES)
def test_messages_are_positional_frozen_and_untracked_by_the_collector(name: str) -> None:
    for struct in _structs(EXAMPLES[name]):
        config = struct.__struct_config__
        assert (config.frozen, config.array_like, config.gc) == (True, True, False), type(struct).__name__


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", codec.encode(EXAMPLES["submit/Submit"])[:-1], msgspec.msgpack.encode({"a": 1})],
    ids=["nothing", "never valid", "cut short", "a map"],
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        codec.decoder(SUBMIT.union).decode(data)
