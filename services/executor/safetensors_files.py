"""The safetensors of a model's directory, mapped into memory: one file, or the shards that an index names.

The format is a length, a JSON table of names, types, shapes and offsets, and the bytes. The table is read here rather
than by the `safetensors` package because its views of bfloat16 need torch, and a model is inspected without it. A file
that is cut or wrong, a shard that is missing, and a tensor in other places than the index says are errors that name it.
"""

import json
import math
import mmap
import struct
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from services.executor.stored import StoredTensor
from services.model_file.directory import INDEX, WEIGHTS, Json, read_json
from services.model_file.errors import ModelFileError

TYPES = {
    "F32": GGMLQuantizationType.F32,
    "F16": GGMLQuantizationType.F16,
    "BF16": GGMLQuantizationType.BF16,
}
_LENGTH = struct.Struct("<Q")


def read(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor by name; raises ModelFileError."""
    if (directory / INDEX).is_file():
        return _read_shards(directory)
    if not (directory / WEIGHTS).is_file():
        raise ModelFileError(f"{directory}: neither {WEIGHTS} nor {INDEX} is there")
    return read_file(directory / WEIGHTS)


def _read_shards(directory: Path) -> dict[str, StoredTensor]:
    index = directory / INDEX
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(
        isinstance(name, str) and name == Path(name).name for name in places.values()
    ):
        raise ModelFileError(f"{index}: weight_map is no table of names of files beside it")
    shards = sorted(set(places.values()))
    missing = [name for name in shards if not (directory / name).is_file()]
    if missing:
        raise ModelFileError(f"{index}: {len(missing)} of {len(shards)} shards are missing: {', '.join(missing)}")
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        for name, tensor in read_file(directory / shard).items():
            if places.get(name) != shard:
                raise ModelFileError(f"{directory / shard}: tensor {name}: {INDEX} has it in {places.get(name)}")
            tensors[name] = tensor
    lost = sorted(places.keys() - tensors.keys())
    if lost:
        raise ModelFileError(f"{directory / places[lost[0]]}: tensor {lost[0]} is not there, where {INDEX} has it")
    return tensors


def read_file(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        (length,) = _LENGTH.unpack_from(data)
        start = _LENGTH.size + length
        table = json.loads(data[_LENGTH.size : start])
    except OSError as error:
        raise ModelFileError(f"{path}: {error.strerror}") from error
    except (struct.error, ValueError) as error:  # empty, cut within the table, no table
        raise ModelFileError(f"{path}: no safetensors file: {error}") from error
    if not isinstance(table, dict):
        raise ModelFileError(f"{path}: no safetensors file: its table is no JSON object")
    table.pop("__metadata__", None)
    tensors: dict[str, StoredTensor] = {}
    for name, entry in table.items():
        try:
            quantization, shape, raw = _tensor(data, start, entry)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"{path}: tensor {name}: {error}") from error
        tensors[name] = StoredTensor(name, shape, quantization, raw, path)
    return tensors


def _tensor(
    data: mmap.mmap, start: int, entry: Json
) -> tuple[GGMLQuantizationType, tuple[int, ...], NDArray[np.uint8]]:
    """What an entry of the table stands for; start: of the bytes that offsets count from."""
    if entry["dtype"] not in TYPES:
        raise ValueError(f"its dtype is {entry['dtype']}; {', '.join(TYPES)} are read")
    quantization = TYPES[entry["dtype"]]
    shape = tuple(int(size) for size in entry["shape"])
    first, last = entry["data_offsets"]
    _, value_bytes = GGML_QUANT_SIZES[quantization]
    if last - first != math.prod(shape) * value_bytes:
        raise ValueError(f"{last - first} bytes are no {entry['dtype']} of shape {shape}")
    if first < 0 or start + last > len(data):
        raise ValueError(f"it ends at byte {start + last} of a file of {len(data)}: the file was cut")
    raw = np.frombuffer(data, np.uint8, last - first, start + first)
    return quantization, shape, raw.reshape(math.prod(shape[:-1]), -1 if shape else value_bytes)
