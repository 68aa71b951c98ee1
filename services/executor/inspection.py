"""What a model is and what it takes, from its files alone: nothing is loaded, and torch is not needed.

Bytes are those of this executor: of weights as a precision holds them in memory, of KV for each token of a sequence.
"""

from pathlib import Path

from msgspec import Struct

from services.executor.checkpoint import Checkpoint, open_checkpoint

# Bytes of one value of KV, and of a weight where precision decides it.
KV_BYTES = {"fast": 2, "exact": 4, "bfloat16": 2, "float16": 2}
WEIGHT_BYTES = {"exact": 4.0, "bfloat16": 2.0, "float16": 2.0}
# What the native kernels keep as it is stored; anything else becomes Q8_0, 34 bytes for 32 values.
KEPT = frozenset({"Q4_0", "Q4_1", "Q8_0"})
Q8_0_BYTES = 34 / 32


class Inspection(Struct, frozen=True, kw_only=True):
    """Sizes in elements, bytes and tokens. tokens_that_fit: of KV in the memory left beside the weights; 0: none."""

    name: str
    path: str
    format: str
    family: str
    num_parameters: int
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    sliding_window: int
    stored_as: str
    file_bytes: int
    precision: str
    weight_bytes: int
    kv_bytes_per_token: int
    memory_bytes: int
    tokens_that_fit: int


def inspect(path: Path, precision: str, memory_bytes: int) -> Inspection:
    """memory_bytes: for weights and KV together. Raises ModelFileError."""
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    weight_bytes = weight_bytes_of(checkpoint, precision)
    kv_bytes = config.kv_values_per_token * KV_BYTES[precision]
    return Inspection(
        name=config.name,
        path=str(path),
        format="Hugging Face directory" if path.is_dir() else "GGUF",
        family=config.family,
        num_parameters=checkpoint.num_parameters,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        context_length=config.context_length,
        sliding_window=max(config.windows, default=0),
        stored_as=checkpoint.stored_as,
        file_bytes=checkpoint.num_bytes,
        precision=precision,
        weight_bytes=weight_bytes,
        kv_bytes_per_token=kv_bytes,
        memory_bytes=memory_bytes,
        tokens_that_fit=max(0, memory_bytes - weight_bytes) // kv_bytes,
    )


def weight_bytes_of(checkpoint: Checkpoint, precision: str) -> int:
    """In memory, the embedding and a head that is the same counted once by the kernels and twice by plain torch."""
    if precision in WEIGHT_BYTES:
        config = checkpoint.config
        again = 0 if config.has_head else config.vocab_size * config.hidden_size  # the head is packed by itself
        return int((checkpoint.num_parameters + again) * WEIGHT_BYTES[precision])
    total = 0.0
    for tensor in checkpoint.tensors.values():
        is_kept = tensor.quantization.name in KEPT or len(tensor.shape) == 1
        num_values = len(tensor.raw) * tensor.shape[-1]
        total += tensor.raw.nbytes if is_kept else num_values * Q8_0_BYTES
    return int(total)
