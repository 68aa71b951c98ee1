"""One example of every message, made from the types alone: each field is set, and to something else than its default.

Golden bytes are made from these, so a field appended to a struct appears in them without anybody writing an example.
Run as a program (`make golden`) it writes golden/messages.json anew; do so only when the wire is meant to change, and
read the difference: old bytes must stay what they were, except for what is appended.
"""

import json
import zlib
from enum import Enum, Flag
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import msgspec
from msgspec import Struct

from services.wire import codec, columns
from services.wire.topology import LINKS

GOLDEN = Path(__file__).parent / "golden" / "messages.json"


def structs_of(union: Any) -> tuple[type[Struct], ...]:
    """The messages of a link's union."""
    return get_args(union) if isinstance(union, UnionType) else (union,)


def messages() -> dict[str, Struct]:
    """Every message of every link, by the link's name and the struct's."""
    return {
        f"{link.name}/{struct.__name__}": example(struct, struct.__name__)
        for link in LINKS
        for struct in structs_of(link.union)
    }


def example(kind: Any, name: str) -> Any:
    """A value of a type; `name` makes one field's value differ from another's."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind(**{field.name: _field(field) for field in msgspec.structs.fields(kind)})
    if get_origin(kind) is tuple:
        return tuple(_members(get_args(kind)[0], name))
    if isinstance(kind, UnionType):
        return _members(kind, name)[0]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(sum(kind)) if issubclass(kind, Flag) else list(kind)[-1]
    number = zlib.crc32(name.encode())
    simple = {int: number, float: number / 8, str: f"{name} é", bytes: columns.pack((1, -2, number >> 1)), bool: True}
    return simple[kind]


def _field(field: msgspec.structs.FieldInfo) -> Any:
    """An example of one field, unlike its default."""
    return not field.default if field.default is True else example(field.type, field.name)


def _members(kind: Any, name: str) -> list[Any]:
    """An example of each member of a union, or of the one type; an optional one comes first, then its None."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return [None if member is NoneType else example(member, name) for member in kinds]


if __name__ == "__main__":
    golden = {name: codec.encode(message).hex() for name, message in messages().items()}
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
