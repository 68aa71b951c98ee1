"""A GGUF file, mapped into memory: its metadata and where its tensors lie.

Written out because the `gguf` package's own reader builds an object for every string of the vocabulary, which takes
seconds; here arrays are walked over and left out of the metadata. Layout: the GGUF specification, version 2 and 3,
little-endian. Knows nothing of models. A file that is cut or wrong is a GgufError that names it.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

Scalar = int | float | bool | str

_MAGIC = 0x46554747
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


class GgufError(Exception):
    """The file is no GGUF file that can be read; the text names it and what is wrong."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as it lies in the file. shape: outermost dimension first; raw: [rows, bytes of a row]."""

    name: str
    shape: tuple[int, ...]
    quantization: GGMLQuantizationType
    raw: NDArray[np.uint8]

    def floats(self, first: int, last: int) -> NDArray[np.float32]:
        """Rows first..last as float32 [rows, row length], exactly as gguf.quants.dequantize gives them."""
        raw = self.raw[first:last]
        quant = getattr(quants, self.quantization.name, None)
        # The package's own loop takes 16 rows at a time, too few to keep two threads busy; its block function is its
        # arithmetic. Plain floats have no block function.
        values: NDArray[np.float32] = (
            quants.dequantize(raw, self.quantization)
            if quant is None
            else quant.dequantize_blocks(raw.reshape(-1, quant.type_size))
        )
        return values.reshape(last - first, self.shape[-1])


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Scalars of the metadata by key (arrays are left out), and every tensor by name."""

    path: Path
    metadata: dict[str, Scalar]
    tensors: dict[str, StoredTensor]


def read(path: Path) -> GgufFile:
    """Map a file; raises GgufError."""
    with path.open("rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise GgufError(f"{path}: {error}") from error
    try:
        return _parse(path, mapped)
    except (struct.error, UnicodeDecodeError, KeyError, ValueError) as error:
        raise GgufError(f"{path}: the header is cut or wrong: {error!r}") from error


class _Cursor:
    """Reads the header from its beginning to its end."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self._buffer = buffer
        self.offset = 0

    def scalar(self, code: str) -> Scalar:
        value: Scalar = struct.unpack_from(code, self._buffer, self.offset)[0]
        self.offset += struct.calcsize(code)
        return value

    def count(self, code: str = "<Q") -> int:
        return int(self.scalar(code))

    def string(self) -> str:
        size = self.count()
        if self.offset + size > len(self._buffer):
            raise ValueError(f"a string of {size} bytes at {self.offset} runs past the end")
        text = self._buffer[self.offset : self.offset + size].decode()
        self.offset += size
        return text

    def skip_array(self) -> None:
        kind, size = self.count("<I"), self.count()
        if kind == _ARRAY:
            raise ValueError("arrays within arrays are not read")
        if kind != _STRING:
            self.offset += struct.calcsize(_SCALARS[kind]) * size
            return
        unpack, offset = struct.Struct("<Q").unpack_from, self.offset
        for _ in range(size):
            offset += 8 + unpack(self._buffer, offset)[0]
        self.offset = offset


def _parse(path: Path, mapped: mmap.mmap) -> GgufFile:
    cursor = _Cursor(mapped)
    magic, version = cursor.count("<I"), cursor.count("<I")
    if magic != _MAGIC or version not in (2, 3):
        raise GgufError(f"{path}: not a GGUF file of version 2 or 3")
    num_tensors, num_entries = cursor.count(), cursor.count()
    metadata: dict[str, Scalar] = {}
    for _ in range(num_entries):
        key, kind = cursor.string(), cursor.count("<I")
        if kind == _ARRAY:
            cursor.skip_array()
        else:
            metadata[key] = cursor.string() if kind == _STRING else cursor.scalar(_SCALARS[kind])
    headers = [_tensor_header(cursor) for _ in range(num_tensors)]
    alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
    base = -(-cursor.offset // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    for header in headers:
        if header.name in tensors:
            raise GgufError(f"{path}: tensor {header.name} is there twice")
        try:
            raw = _raw(mapped, header, base)
        except ValueError as error:
            raise GgufError(f"{path}: tensor {header.name}: {error}") from error
        tensors[header.name] = StoredTensor(header.name, header.shape, header.quantization, raw)
    return GgufFile(path, metadata, tensors)


class _Header(NamedTuple):
    name: str
    shape: tuple[int, ...]  # outermost dimension first; the file has it the other way round
    quantization: GGMLQuantizationType
    offset: int  # from where the tensors begin


def _tensor_header(cursor: _Cursor) -> _Header:
    name = cursor.string()
    innermost_first = [cursor.count() for _ in range(cursor.count("<I"))]
    quantization = GGMLQuantizationType(cursor.count("<I"))
    return _Header(name, tuple(reversed(innermost_first)), quantization, cursor.count())


def _raw(mapped: mmap.mmap, header: _Header, base: int) -> NDArray[np.uint8]:
    values_per_block, bytes_per_block = GGML_QUANT_SIZES[header.quantization]
    shape = header.shape
    if not shape or shape[-1] % values_per_block:
        raise ValueError(f"shape {shape} is no whole number of {header.quantization.name} blocks")
    row_bytes = shape[-1] // values_per_block * bytes_per_block
    num_rows = math.prod(shape[:-1])
    if base + header.offset + num_rows * row_bytes > len(mapped):
        raise ValueError("runs past the end of the file")
    return np.frombuffer(mapped, np.uint8, num_rows * row_bytes, base + header.offset).reshape(num_rows, row_bytes)
