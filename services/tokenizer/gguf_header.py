"""The key-value header of a GGUF file as plain Python values, and nothing else of the file.

A reader of its own because the `gguf` package's makes a numpy view of every element: seconds and hundreds of
megabytes for a vocabulary, at the start of each process that needs a tokenizer; this takes a twentieth of a second.
Knows the format (versions 2 and 3, little-endian); knows nothing of what the keys mean. Never touches a tensor.
"""

import mmap
import struct
from pathlib import Path

from services.tokenizer.errors import TokenizerFileError

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
_TYPE = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_ARRAY_HEAD = struct.Struct("<IQ")  # element type, number of elements
_HEAD = struct.Struct("<4sIQQ")  # magic, version, number of tensors, number of keys


def read_metadata(path: Path) -> Metadata:
    """Every key of the file's header; raises TokenizerFileError when it is no GGUF file of a known version."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            magic, version, _, num_keys = _HEAD.unpack_from(data)
            if magic != MAGIC or version not in VERSIONS:
                raise TokenizerFileError(f"{path}: no little-endian GGUF file of version 2 or 3")
            return _Reader(data, _HEAD.size).pairs(num_keys)
    except OSError as error:
        raise TokenizerFileError(f"{path}: {error}") from error
    except (struct.error, ValueError) as error:  # cut short, no UTF-8, an empty file
        raise TokenizerFileError(f"{path}: broken GGUF header: {error}") from error


class _Reader:
    """A place in the header, moving forward."""

    def __init__(self, data: mmap.mmap, offset: int) -> None:
        self._data = data
        self._offset = offset

    def pairs(self, count: int) -> Metadata:
        metadata: Metadata = {}
        for _ in range(count):
            key = self._string()
            metadata[key] = self._value(self._scalar(_TYPE))
        return metadata

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            element, count = _ARRAY_HEAD.unpack_from(self._data, self._offset)
            self._offset += _ARRAY_HEAD.size
            return self._array(element, count)
        if kind not in _SCALARS:
            raise ValueError(f"value type {kind} is unknown")
        value: int | float | bool = self._scalar(_SCALARS[kind])
        return value

    def _array(self, element: int, count: int) -> list[Value]:
        if element not in _SCALARS:
            return [self._value(element) for _ in range(count)]
        layout = struct.Struct(f"<{count}{_SCALARS[element].format[1:]}")
        values = layout.unpack_from(self._data, self._offset)
        self._offset += layout.size
        return list(values)

    def _string(self) -> str:
        length = self._scalar(_LENGTH)
        start = self._offset
        self._offset += length
        if self._offset > len(self._data):
            raise ValueError("a string reaches past the end of the file")
        return self._data[start : self._offset].decode()

    def _scalar(self, layout: struct.Struct) -> int:
        (value,) = layout.unpack_from(self._data, self._offset)
        self._offset += layout.size
        return value  # type: ignore[no-any-return]  # the layout decides: int, float or bool
