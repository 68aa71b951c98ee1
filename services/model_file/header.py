"""The key-value header of a GGUF file as plain Python values, and where its table of tensors begins.

A reader of its own because the `gguf` package's makes a numpy view of every element: seconds and hundreds of
megabytes for a vocabulary, at the start of each process that reads one; this takes a twentieth of a second. Knows the
format (versions 2 and 3, little-endian); knows nothing of what the keys mean. Never touches a tensor.
"""

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.model_file.errors import GgufError

Value = int | float | bool | str | list["Value"]
Metadata = dict[str, Value]

MAGIC = b"GGUF"
VERSIONS = (2, 3)

_STRING = 8
_ARRAY = 9
_SCALARS = {
    number: struct.Struct(f"<{letter}")
    for number, letter in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_UINT32, _UINT64 = _SCALARS[4], _SCALARS[10]
_ARRAY_HEAD = struct.Struct("<IQ")  # element type, number of elements
_HEAD = struct.Struct("<4sIQQ")  # magic, version, number of tensors, number of keys


@dataclass(frozen=True, slots=True)
class Header:
    """Every key, and the table of tensors: how many entries, and the byte it begins at."""

    metadata: Metadata
    num_tensors: int
    tensors_at: int


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    """The file in memory; every way in which its bytes cannot be what they should becomes a GgufError that names it.

    The mapping is closed by nobody: arrays over it may outlive the block, and then it lives as long as they do.
    """
    try:
        with path.open("rb") as file:
            yield mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise GgufError(f"{path}: {error}") from error
    except (struct.error, ValueError, KeyError) as error:  # cut short, no UTF-8, an empty file, an unknown type
        raise GgufError(f"{path}: broken GGUF header: {error}") from error


def read_header(path: Path) -> Header:
    """The header of a file; raises GgufError when it is no GGUF file of a known version."""
    with mapped(path) as data:
        return parse_header(path, data)


def parse_header(path: Path, data: mmap.mmap) -> Header:
    """The header at the beginning of `data`; path: for the errors."""
    magic, version, num_tensors, num_keys = _HEAD.unpack_from(data)
    if magic != MAGIC or version not in VERSIONS:
        raise GgufError(f"{path}: not a GGUF file of version 2 or 3, little-endian")
    reader = HeaderReader(data, _HEAD.size)
    metadata: Metadata = {}
    for _ in range(num_keys):
        key = reader.string()
        metadata[key] = reader.value(reader.uint32())
    return Header(metadata, num_tensors, reader.offset)


class HeaderReader:
    """A place in the header, moving forward. Raises struct.error or ValueError past the end of the file."""

    def __init__(self, data: mmap.mmap, offset: int) -> None:
        self._data = data
        self.offset = offset

    def uint32(self) -> int:
        return int(self._scalar(_UINT32))

    def uint64(self) -> int:
        return int(self._scalar(_UINT64))

    def string(self) -> str:
        length = self.uint64()
        start = self.offset
        self.offset += length
        if self.offset > len(self._data):
            raise ValueError("a string reaches past the end of the file")
        return self._data[start : self.offset].decode()

    def value(self, kind: int) -> Value:
        """A value of a type of the format, by its number."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            element, count = _ARRAY_HEAD.unpack_from(self._data, self.offset)
            self.offset += _ARRAY_HEAD.size
            return self._array(element, count)
        if kind not in _SCALARS:
            raise ValueError(f"value type {kind} is unknown")
        return self._scalar(_SCALARS[kind])

    def _array(self, element: int, count: int) -> list[Value]:
        if element == _STRING:
            return self._strings(count)
        if element not in _SCALARS:
            return [self.value(element) for _ in range(count)]
        layout = struct.Struct(f"<{count}{_SCALARS[element].format[1:]}")
        values = layout.unpack_from(self._data, self.offset)
        self.offset += layout.size
        return list(values)

    def _strings(self, count: int) -> list[Value]:
        """As so many calls of string(), in a quarter of the time: a vocabulary has a hundred thousand."""
        data, size, length_at = self._data, len(self._data), _UINT64.unpack_from
        strings: list[Value] = []
        end = self.offset
        for _ in range(count):
            start = end + _UINT64.size
            end = start + int(length_at(data, end)[0])
            if end > size:
                raise ValueError("a string reaches past the end of the file")
            strings.append(data[start:end].decode())
        self.offset = end
        return strings

    def _scalar(self, layout: struct.Struct) -> int | float | bool:
        (value,) = layout.unpack_from(self._data, self.offset)
        self.offset += layout.size
        scalar: int | float | bool = value
        return scalar
