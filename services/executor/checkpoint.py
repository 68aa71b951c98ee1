"""A model as it lies on disk, be it a GGUF file or a Hugging Face directory: its shape, its tensors, and their places.

What `open_checkpoint` returns is whole and fits together; a checkpoint that does not is a ModelFileError that names the
file, the tensor or key, and what was expected there. Without torch, and before any value is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.executor import gguf_config, gguf_file, hf_config, safetensors_files
from services.executor.config import LlamaConfig
from services.executor.families import FAMILIES
from services.executor.parts import GGUF, HUGGING_FACE, Layout, check_tensors
from services.executor.stored import StoredTensor
from services.model_file.directory import CONFIG, TOKENIZER, read_json_if_there, token_ids
from services.model_file.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """tensors: by the names of the format; layout: which of them goes where."""

    path: Path
    config: LlamaConfig
    tensors: Mapping[str, StoredTensor]
    layout: Layout

    @property
    def num_parameters(self) -> int:
        """Values of all tensors."""
        return sum(int(np.prod(tensor.shape)) for tensor in self.tensors.values())

    @property
    def num_bytes(self) -> int:
        """Of all tensors, as they are stored."""
        return sum(tensor.raw.nbytes for tensor in self.tensors.values())

    @property
    def stored_as(self) -> str:
        """The type that most of the values have, such as Q4_1 or BF16."""
        sizes: dict[str, int] = {}
        for tensor in self.tensors.values():
            name = tensor.quantization.name
            sizes[name] = sizes.get(name, 0) + int(np.prod(tensor.shape))
        return max(sizes, key=lambda name: sizes[name], default="nothing")


def open_checkpoint(path: Path) -> Checkpoint:
    """Map a GGUF file or a directory; raises ModelFileError."""
    return _open_directory(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> Checkpoint:
    file = gguf_file.read(path)
    config = gguf_config.read_config(file)
    layout = Layout(config, GGUF, FAMILIES[config.family].interleaved_in_gguf)
    _check_heads(path, config)
    check_tensors(path, file.tensors, layout)
    _check_vocabulary(f"{path}: tokenizer.ggml.tokens", file.lengths.get("tokenizer.ggml.tokens", 0), config)
    return Checkpoint(path, config, file.tensors, layout)


def _open_directory(path: Path) -> Checkpoint:
    if not (path / CONFIG).is_file():
        raise ModelFileError(f"{path}: the directory has no {CONFIG}")
    tensors = safetensors_files.read(path)
    config = hf_config.read_config(path, stores_head=HUGGING_FACE.head in tensors)
    layout = Layout(config, HUGGING_FACE)
    _check_heads(path, config)
    check_tensors(path, tensors, layout)
    _check_vocabulary(str(path / TOKENIZER), _num_tokens(path), config)
    return Checkpoint(path, config, tensors, layout)


def _check_heads(path: Path, config: LlamaConfig) -> None:
    """As many query heads for one key head as for any other."""
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(f"{path}: {config.num_heads} heads cannot share {config.num_kv_heads} heads of keys")


def _num_tokens(directory: Path) -> int:
    """One more than the highest id of the tokenizer; 0 without one."""
    return max(token_ids(read_json_if_there(directory / TOKENIZER)).values(), default=-1) + 1


def _check_vocabulary(place: str, num_tokens: int, config: LlamaConfig) -> None:
    """A model may have rows that no token has, never the other way round."""
    if num_tokens > config.vocab_size:
        raise ModelFileError(f"{place}: {num_tokens} tokens, where the weights have rows for {config.vocab_size}")
    for token_id in config.eos_token_ids:
        if token_id >= config.vocab_size:
            raise ModelFileError(f"{place}: the end token {token_id} is none of the weights' {config.vocab_size}")
