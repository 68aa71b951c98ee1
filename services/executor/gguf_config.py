"""A model's shape from the metadata of its GGUF file. Nothing is assumed: what is missing is an error."""

from typing import Any

from services.executor.config import LlamaConfig, RopeScaling
from services.executor.families import family_of
from services.executor.gguf_file import GgufFile
from services.executor.hf_config import unturned_every, yarn_magnitude
from services.model_file.errors import GgufError

_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"


class Metadata:
    """The keys of one architecture."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file = file
        self._prefix = architecture

    def need(self, key: str) -> Any:
        """A value that must be there."""
        value = self.get(key)
        if value is None:
            raise GgufError(f"{self._file.path}: the metadata has no {self._prefix}.{key}")
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """A value, or the default."""
        return self._file.metadata.get(f"{self._prefix}.{key}", default)

    def refuse(self, key: str, wanted: object, why: str) -> None:
        """Raise GgufError unless the key is absent or has this value."""
        if self.get(key, wanted) != wanted:
            raise GgufError(f"{self._file.path}: {self._prefix}.{key} {why}")


def read_config(file: GgufFile) -> LlamaConfig:
    """Raises ModelFileError naming the key that is missing, or what of the file this model cannot express."""
    architecture = file.metadata.get("general.architecture")
    family = family_of(architecture, f"{file.path}: general.architecture")
    data = Metadata(file, str(architecture))
    hidden_size, num_heads = int(data.need("embedding_length")), int(data.need("attention.head_count"))
    head_dim, num_layers = (
        int(data.get("attention.key_length", hidden_size // num_heads)),
        int(data.need("block_count")),
    )
    for key in ("attention.value_length", "rope.dimension_count"):
        data.refuse(key, head_dim, f"differs from the head size {head_dim}")
    window = int(data.get("attention.sliding_window", 0))
    return LlamaConfig(
        name=str(file.metadata.get("general.name", file.path.stem)),
        num_layers=num_layers,
        hidden_size=hidden_size,
        ffn_size=int(data.need("feed_forward_length")),
        num_heads=num_heads,
        num_kv_heads=int(data.get("attention.head_count_kv", num_heads)),
        head_dim=head_dim,
        vocab_size=file.tensors[_EMBEDDING].shape[0] if _EMBEDDING in file.tensors else 0,
        context_length=int(data.need("context_length")),
        norm_eps=float(data.need("attention.layer_norm_rms_epsilon")),
        rope_base=float(data.need("rope.freq_base")),
        eos_token_ids=_eos_token_ids(file),
        family=str(architecture),
        has_head=_HEAD in file.tensors,
        qkv_bias=family.qkv_bias or "blk.0.attn_q.bias" in file.tensors,
        out_bias="blk.0.attn_output.bias" in file.tensors,
        ffn_bias="blk.0.ffn_down.bias" in file.tensors,
        head_norms=family.head_norms,
        windows=(window,) * num_layers if window else (),
        turns=unturned_every(family.unturned, num_layers) if family.unturned else (),
        rope_scaling=_scaling(file, data),
    )


def _scaling(file: GgufFile, data: Metadata) -> RopeScaling | None:
    """Llama 3's is no key: its factors are a tensor of the file."""
    kind = data.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise GgufError(f"{file.path}: rope scaling of type {kind!r} is not supported")
    factor = float(data.need("rope.scaling.factor"))
    if kind == "linear":
        return RopeScaling("linear", factor)
    return RopeScaling(
        "yarn",
        factor,
        int(data.need("rope.scaling.original_context_length")),
        beta_fast=float(data.get("rope.scaling.yarn_beta_fast", 32.0)),
        beta_slow=float(data.get("rope.scaling.yarn_beta_slow", 1.0)),
        magnitude=yarn_magnitude(factor) * float(data.get("rope.scaling.attn_factor", 1.0)),
    )


def _eos_token_ids(file: GgufFile) -> tuple[int, ...]:
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
    found = (int(file.metadata[key]) for key in keys if key in file.metadata)
    return tuple(dict.fromkeys(found))
