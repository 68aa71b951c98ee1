"""A GGUF file, mapped into memory: its metadata and where its tensors lie.

The header is read by services/model_file; here is the table of tensors. Knows nothing of models. A file that is cut or
wrong is a GgufError that names it.
"""

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from services.executor.stored import StoredTensor, is_readable
from services.model_file.errors import GgufError
from services.model_file.header import HeaderReader, mapped, parse_header

Scalar = int | float | bool | str

_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Scalars of the metadata by key (of arrays, how long they are by key), and every tensor by name."""

    path: Path
    metadata: dict[str, Scalar]
    lengths: dict[str, int]
    tensors: dict[str, StoredTensor]


def read(path: Path) -> GgufFile:
    """Map a file; raises GgufError."""
    with mapped(path) as data:
        return _parse(path, data)


def _parse(path: Path, data: mmap.mmap) -> GgufFile:
    header = parse_header(path, data)
    metadata = {key: value for key, value in header.metadata.items() if not isinstance(value, list)}
    lengths = {key: len(value) for key, value in header.metadata.items() if isinstance(value, list)}
    reader = HeaderReader(data, header.tensors_at)
    entries = [_entry(reader) for _ in range(header.num_tensors)]
    alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
    base = -(-reader.offset // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    for entry in entries:
        if entry.name in tensors:
            raise GgufError(f"{path}: tensor {entry.name} is there twice")
        try:
            quantization, raw = _raw(data, entry, base)
        except ValueError as error:
            raise GgufError(f"{path}: tensor {entry.name}: {error}") from error
        tensors[entry.name] = StoredTensor(entry.name, entry.shape, quantization, raw, path)
    return GgufFile(path, metadata, lengths, tensors)


class _Entry(NamedTuple):
    name: str
    shape: tuple[int, ...]  # outermost dimension first; the file has it the other way round
    type_number: int
    offset: int  # from where the tensors begin


def _entry(reader: HeaderReader) -> _Entry:
    name = reader.string()
    innermost_first = [reader.uint64() for _ in range(reader.uint32())]
    return _Entry(name, tuple(reversed(innermost_first)), reader.uint32(), reader.uint64())


def _raw(data: mmap.mmap, entry: _Entry, base: int) -> tuple[GGMLQuantizationType, NDArray[np.uint8]]:
    quantization, shape = _type_of(entry.type_number), entry.shape
    values_per_block, bytes_per_block = GGML_QUANT_SIZES[quantization]
    if not shape or shape[-1] % values_per_block:
        raise ValueError(f"shape {shape} is no whole number of {quantization.name} blocks")
    row_bytes = shape[-1] // values_per_block * bytes_per_block
    num_rows = math.prod(shape[:-1])
    if base + entry.offset + num_rows * row_bytes > len(data):
        raise ValueError("runs past the end of the file")
    raw = np.frombuffer(data, np.uint8, num_rows * row_bytes, base + entry.offset)
    return quantization, raw.reshape(num_rows, row_bytes)


def _type_of(number: int) -> GGMLQuantizationType:
    try:
        quantization = GGMLQuantizationType(number)
    except ValueError:
        raise ValueError(f"its type, number {number}, is unknown") from None
    if not is_readable(quantization):
        raise ValueError(f"values of type {quantization.name} cannot be read")
    return quantization
