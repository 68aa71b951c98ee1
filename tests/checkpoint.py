"""The weights of a GGUF file of the Llama family as a Hugging Face directory, for engines and tests that read those.

Same values: dequantized, rounded only where the directory's type is smaller than float32, Q and K rows back in the
order of half-split rotation.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from services.executor.checkpoint import Checkpoint, open_checkpoint
from services.executor.reading import half_split
from services.tokenizer import bundle
from services.tokenizer.tokenizer import load

OF_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_checkpoint(path: Path, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Make <folder> with config.json, model.safetensors and the tokenizer's files."""
    checkpoint = open_checkpoint(path)
    folder.mkdir(parents=True)
    contents = bundle.files(load(path), checkpoint.config.context_length)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    shape = json.loads(contents["config.json"]) | _shape(checkpoint, dtype)
    (folder / "config.json").write_text(json.dumps(shape, indent=1))
    save_file({name: values.to(dtype) for name, values in _tensors(checkpoint)}, folder / "model.safetensors")


def _shape(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, object]:
    config = checkpoint.config
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_base,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": not config.has_head,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def _tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    config = checkpoint.config
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    for name, tensor in checkpoint.tensors.items():
        rows = tensor.floats(0, len(tensor.raw))
        *layer, kind, _ = name.split(".")
        if kind in heads:
            rows = half_split(rows, heads[kind])
        values = torch.tensor(rows if len(tensor.shape) > 1 else rows[0])
        place = f"model.layers.{layer[1]}.{OF_LAYER[kind]}" if layer else OF_MODEL[kind]
        yield f"{place}.weight", values
