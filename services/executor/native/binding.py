"""The C interface of the kernels (src/abi.h) as ctypes: its structs, field by field, and its table of functions.

Knows addresses and sizes, nothing of models. Whoever fills a struct keeps what it points to alive.
"""

import ctypes
import importlib.machinery
import importlib.util
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from pathlib import Path

ABI_VERSION = 4


class Format(IntEnum):
    """How a weight's values are stored: 32 of them share a block; F32 becomes Q8_0 when it is packed."""

    Q4_0 = 0
    Q4_1 = 1
    Q8_0 = 2
    F32 = 3


class KvType(IntEnum):
    """What a value of the KV memory is; INT8 with a float scale for each token and head."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT8 = 2


class Weight(ctypes.Structure):
    """rows: outputs; columns: inputs. bias may be null."""

    _fields_ = (
        ("format", c_int32),
        ("rows", c_int32),
        ("columns", c_int32),
        ("packed", c_void_p),
        ("bias", c_void_p),
    )


class Pools(ctypes.Structure):
    """The KV memory of one layer."""

    _fields_ = (("keys", c_void_p), ("values", c_void_p))


class Shape(ctypes.Structure):
    """The heads of a model and the cells of its KV memory."""

    _fields_ = tuple((name, c_int32) for name in ("heads", "kv_heads", "head_dim", "block_size", "kv_type"))


class Step(ctypes.Structure):
    """One step: R rows, T tokens."""

    _fields_ = (
        ("rows", c_int32),
        ("tokens", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slot_mapping", c_void_p),
        ("cu_seqlens_q", c_void_p),
        ("kv_lens", c_void_p),
        ("block_table", c_void_p),
        ("table_stride", c_int32),
        ("threads", c_int32),
    )


class Layer(ctypes.Structure):
    """q_norm and k_norm may be null; window 0: all positions."""

    _fields_ = (
        ("attention_norm", c_void_p),
        ("ffn_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("qkv", Weight),
        ("attention_out", Weight),
        ("gate_up", Weight),
        ("down", Weight),
        ("window", c_int32),
    )


class Model(ctypes.Structure):
    """A whole model; layer points to as many Layer as layers says."""

    _fields_ = (
        ("shape", Shape),
        ("layers", c_int32),
        ("hidden", c_int32),
        ("ffn", c_int32),
        ("eps", c_float),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("norm", c_void_p),
        ("embedding", Weight),
        ("layer", POINTER(Layer)),
    )


def _function(result: type | None, *arguments: type) -> type:
    return ctypes.CFUNCTYPE(result, *arguments)


_WEIGHT, _SHAPE, _STEP, _POOLS, _MODEL = (POINTER(kind) for kind in (Weight, Shape, Step, Pools, Model))


class Kernels(ctypes.Structure):
    """The functions of one variant; see src/abi.h for what each does."""

    _fields_ = (
        ("name", c_char_p),
        ("lanes", c_int32),
        ("packed_bytes", _function(c_int64, c_int32, c_int32, c_int32)),
        ("pack", _function(None, _WEIGHT, c_void_p, c_int32)),
        ("embed", _function(None, _WEIGHT, c_void_p, c_int32, c_void_p)),
        ("linear", _function(None, _WEIGHT, c_void_p, c_int32, c_void_p, c_int32)),
        (
            "add_normalize",
            _function(None, c_void_p, c_void_p, c_void_p, c_float, c_int32, c_int32, c_void_p, c_int32),
        ),
        ("rotate_and_store", _function(None, _SHAPE, _STEP, c_void_p, c_void_p, c_void_p, _POOLS)),
        ("attend", _function(None, _SHAPE, _STEP, c_void_p, _POOLS, c_int32, c_void_p)),
        ("gate", _function(None, c_void_p, c_int32, c_int32, c_void_p, c_int32)),
        ("check", _function(None, c_void_p, c_int32, c_int32, c_void_p, c_int32)),
        ("peaks", _function(None, c_void_p, c_int32, c_int32, c_int32, c_void_p, c_int32)),
        (
            "weigh",
            _function(
                *(None, c_void_p, c_int32, c_int32, c_void_p, c_void_p, c_void_p, c_int32, c_void_p, c_void_p, c_int32)
            ),
        ),
        ("ban", _function(None, c_void_p, c_int32, c_void_p, c_void_p, c_int32, c_int32)),
        ("forward_bytes", _function(c_int64, _MODEL, c_int32, c_int32)),
        ("forward", _function(None, _MODEL, _STEP, _POOLS, c_void_p, c_void_p)),
    )


class KernelsError(Exception):
    """There are no kernels to be had; the text says why."""


def built_library() -> Path:
    """Where the package's build put the library; raises KernelsError when there is none."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        if path.is_file():
            return path
    raise KernelsError("the native kernels were not built: this installation had no C++ compiler")


def open_library(path: Path) -> ctypes.CDLL:
    """Load a library of kernels, and with it the OpenMP that torch brings: one pool of threads serves both."""
    try:
        for openmp in _torch_files("lib/libgomp*.so*"):
            ctypes.CDLL(str(openmp))
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelsError(f"the native kernels cannot be loaded: {error}") from error
    if library.tandem_abi_version() != ABI_VERSION:
        raise KernelsError("the native kernels were built from other sources: build the package again")
    library.tandem_variants.restype = c_char_p
    library.tandem_kernels.restype = POINTER(Kernels)
    library.tandem_kernels.argtypes = (c_char_p,)
    return library


def _torch_files(pattern: str) -> list[Path]:
    """Of the installed torch, which is not imported for it."""
    found = importlib.util.find_spec("torch")
    folders = found.submodule_search_locations if found is not None else None
    return [file for folder in folders or () for file in sorted(Path(folder).glob(pattern))]


def variants(library: ctypes.CDLL) -> list[str]:
    """What this processor can run, the fastest first."""
    names: bytes = library.tandem_variants()
    return names.decode().split()


def open_kernels(library: ctypes.CDLL, variant: str = "") -> Kernels:
    """The functions of a variant, of the fastest when none is named; raises KernelsError."""
    names = variants(library)
    name = variant or (names[0] if names else "")
    if name not in names:
        raise KernelsError(f"no native kernels {name!r} for this processor; there are: {names or 'none'}")
    kernels: Kernels = library.tandem_kernels(name.encode()).contents
    return kernels
