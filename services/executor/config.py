"""The shape of a Llama model, from the metadata of its GGUF file. Nothing is assumed: what is missing is an error."""

from dataclasses import dataclass

from services.executor.gguf_file import GgufFile, Scalar
from services.model_file import GgufError

_ARCHITECTURE = "llama"
_NO_SCALING = "none"


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes in elements. rope_base: the base of the rotary frequencies."""

    name: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope_base: float
    eos_token_ids: tuple[int, ...]

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token adds to the KV cache."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


def read_config(file: GgufFile) -> LlamaConfig:
    """Raises GgufError naming the key that is missing, or what of the file this model cannot express."""
    architecture = file.metadata.get("general.architecture")
    if architecture != _ARCHITECTURE:
        raise GgufError(f"{file.path}: architecture {architecture!r} is not {_ARCHITECTURE!r}")
    scaling = file.metadata.get("llama.rope.scaling.type", _NO_SCALING)
    if scaling != _NO_SCALING:
        raise GgufError(f"{file.path}: rope scaling of type {scaling!r} is not supported")
    hidden_size, num_heads = int(_need(file, "embedding_length")), int(_need(file, "attention.head_count"))
    head_dim = int(file.metadata.get("llama.attention.key_length", hidden_size // num_heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if file.metadata.get(f"llama.{key}", head_dim) != head_dim:
            raise GgufError(f"{file.path}: llama.{key} differs from the head size {head_dim}")
    return LlamaConfig(
        name=str(file.metadata.get("general.name", file.path.stem)),
        num_layers=int(_need(file, "block_count")),
        hidden_size=hidden_size,
        ffn_size=int(_need(file, "feed_forward_length")),
        num_heads=num_heads,
        num_kv_heads=int(file.metadata.get("llama.attention.head_count_kv", num_heads)),
        head_dim=head_dim,
        vocab_size=file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 0,
        context_length=int(_need(file, "context_length")),
        norm_eps=float(_need(file, "attention.layer_norm_rms_epsilon")),
        rope_base=float(_need(file, "rope.freq_base")),
        eos_token_ids=_eos_token_ids(file),
    )


def _need(file: GgufFile, key: str) -> Scalar:
    value = file.metadata.get(f"{_ARCHITECTURE}.{key}")
    if value is None:
        raise GgufError(f"{file.path}: the metadata has no {_ARCHITECTURE}.{key}")
    return value


def _eos_token_ids(file: GgufFile) -> tuple[int, ...]:
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    found = (int(file.metadata[key]) for key in keys if key in file.metadata)
    return tuple(dict.fromkeys(found))
