"""A GGUF file, mapped into memory: its metadata and where its tensors lie.

The header is read by services/model_file; here are the table of tensors and their exact dequantization (the `gguf`
package's arithmetic). Knows nothing of models. A file that is cut or wrong is a GgufError that names it.
"""

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from services.model_file.header import GgufError, HeaderReader, mapped, parse_header

Scalar = int | float | bool | str

_DEFAULT_ALIGNMENT = 32


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
    with mapped(path) as data:
        return _parse(path, data)


def _parse(path: Path, data: mmap.mmap) -> GgufFile:
    header = parse_header(path, data)
    metadata = {key: value for key, value in header.metadata.items() if not isinstance(value, list)}
    reader = HeaderReader(data, header.tensors_at)
    entries = [_entry(reader) for _ in range(header.num_tensors)]
    alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
    base = -(-reader.offset // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    for entry in entries:
        if entry.name in tensors:
            raise GgufError(f"{path}: tensor {entry.name} is there twice")
        try:
            raw = _raw(data, entry, base)
        except ValueError as error:
            raise GgufError(f"{path}: tensor {entry.name}: {error}") from error
        tensors[entry.name] = StoredTensor(entry.name, entry.shape, entry.quantization, raw)
    return GgufFile(path, metadata, tensors)


class _Entry(NamedTuple):
    name: str
    shape: tuple[int, ...]  # outermost dimension first; the file has it the other way round
    quantization: GGMLQuantizationType
    offset: int  # from where the tensors begin


def _entry(reader: HeaderReader) -> _Entry:
    name = reader.string()
    innermost_first = [reader.uint64() for _ in range(reader.uint32())]
    quantization = GGMLQuantizationType(reader.uint32())
    return _Entry(name, tuple(reversed(innermost_first)), quantization, reader.uint64())


def _raw(data: mmap.mmap, entry: _Entry, base: int) -> NDArray[np.uint8]:
    values_per_block, bytes_per_block = GGML_QUANT_SIZES[entry.quantization]
    shape = entry.shape
    if not shape or shape[-1] % values_per_block:
        raise ValueError(f"shape {shape} is no whole number of {entry.quantization.name} blocks")
    row_bytes = shape[-1] // values_per_block * bytes_per_block
    num_rows = math.prod(shape[:-1])
    if base + entry.offset + num_rows * row_bytes > len(data):
        raise ValueError("runs past the end of the file")
    return np.frombuffer(data, np.uint8, num_rows * row_bytes, base + entry.offset).reshape(num_rows, row_bytes)
