"""Checkpoints of every family, small enough for any test: made by `transformers` with random weights, in float32.

A variant is what its config.json says differently from the plain one. The same weights can be written as a GGUF file,
with the names that the `gguf` package has for them and the order of rows that llama.cpp's converter gives Q and K.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor

from tests.unit.executor.tiny_llama import interleave

VOCAB, CONTEXT = 96, 128
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
BASE = 5000.0


@dataclass(frozen=True)
class Variant:
    """One model. rope: its rope_parameters besides the base; gguf: keys of a GGUF file besides the sizes."""

    family: str
    changes: dict[str, Any] = field(default_factory=dict)
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default"})
    gguf: dict[str, int | float | str] = field(default_factory=dict)

    def config(self) -> Any:
        """Its configuration, of `transformers`."""
        from transformers import AutoConfig  # noqa: PLC0415

        rope = {"rope_theta": BASE, **self.rope}
        return AutoConfig.for_model(self.family, **{**SIZES, "rope_parameters": rope, **self.changes})


STRETCHED = {"factor": 4.0, "original_max_position_embeddings": 32}
VARIANTS = {
    "llama": Variant("llama"),
    "llama, tied": Variant("llama", {"tie_word_embeddings": True}),
    "llama, biases": Variant("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, rope llama3": Variant(
        "llama", rope={"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **STRETCHED}
    ),
    "llama, rope linear": Variant(
        "llama",
        rope={"rope_type": "linear", "factor": 2.5},
        gguf={"rope.scaling.type": "linear", "rope.scaling.factor": 2.5},
    ),
    "llama, rope yarn": Variant(
        "llama",
        rope={"rope_type": "yarn", **STRETCHED},
        gguf={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
    ),
    "mistral, window 9": Variant("mistral", {"sliding_window": 9}, gguf={"attention.sliding_window": 9}),
    "mistral, no window": Variant("mistral", {"sliding_window": None}),
    "qwen2": Variant("qwen2"),
    "qwen2, window 7 from layer 2 on": Variant(
        "qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}
    ),
    "qwen3, tied": Variant("qwen3", {"tie_word_embeddings": True}),
    "qwen3, rope yarn": Variant("qwen3", rope={"rope_type": "yarn", "attention_factor": 1.2, **STRETCHED}),
    "smollm2": Variant("llama", {"tie_word_embeddings": True, "num_attention_heads": 3, "num_key_value_heads": 1}),
    "smollm3, every 4th layer unturned": Variant(
        "smollm3", {"tie_word_embeddings": True, "bos_token_id": 0, "pad_token_id": 0}
    ),
}


def make(variant: Variant, seed: int = 0) -> Any:
    """A model of `transformers` with weights large enough that its logits have gaps."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    torch.manual_seed(seed)
    build: Callable[..., Any] = AutoModelForCausalLM.from_config
    model = build(variant.config(), attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.dim() > 1:
                values.normal_(0, 1.5 / values.shape[-1] ** 0.5)
            else:
                values.normal_(0.0 if name.endswith("bias") else 1.0, 0.1)
    return model


@torch.no_grad()
def logits_of(model: Any, tokens: list[int]) -> Tensor:
    """[tokens, vocab]."""
    logits: Tensor = model(input_ids=torch.tensor([tokens])).logits[0]
    return logits


def write_gguf(variant: Variant, model: Any, path: Path) -> Path:
    """The same weights as llama.cpp's converter would write them: Mistral is of Llama's architecture there."""
    architecture = "llama" if variant.family == "mistral" else variant.family
    config, writer = model.config, gguf.GGUFWriter(path, architecture)
    numbers: dict[str, int | float | str] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": BASE,
        **variant.gguf,
    }
    adders: dict[type, Callable[..., None]] = {
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    for key, value in numbers.items():
        adders[type(value)](f"{architecture}.{key}", value)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        reordered = re.search(r"([qk]_proj)\.(weight|bias)$", name)
        if reordered and not variant.family.startswith("qwen"):
            values = interleave(values.reshape(len(values), -1), heads[reordered[1]]).reshape(values.shape)
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert written is not None, name
        writer.add_tensor(written, values.copy())
    if variant.rope["rope_type"] == "llama3":  # whose factors the converter writes as a tensor
        plain = BASE ** -(torch.arange(0, config.head_dim, 2) / config.head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
