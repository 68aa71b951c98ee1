"""A Llama small enough for any test: random weights, written as a GGUF file as llama.cpp's converter would."""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import silu

F32 = NDArray[np.float32]

VOCAB, HIDDEN, FFN, LAYERS, CONTEXT = 96, 64, 96, 3, 128
HEADS, KV_HEADS, HEAD_DIM = 6, 2, 16
EPS, ROPE_BASE = 1e-5, 5000.0

SHAPES = {
    "attn_norm": (HIDDEN,),
    "attn_q": (HEADS * HEAD_DIM, HIDDEN),
    "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD_DIM),
    "ffn_norm": (HIDDEN,),
    "ffn_gate": (FFN, HIDDEN),
    "ffn_up": (FFN, HIDDEN),
    "ffn_down": (HIDDEN, FFN),
}


def random_weights(seed: int = 0, has_head: bool = False) -> dict[str, F32]:
    """Weights by GGUF name, Q and K in the order of half-split rotation."""
    rng = np.random.default_rng(seed)

    def weight(*shape: int) -> F32:
        # Large enough that the tokens of a random model differ and its logits have gaps.
        values = (
            1 + 0.1 * rng.normal(size=shape) if len(shape) == 1 else rng.normal(size=shape) / shape[-1] ** 0.5 * 1.5
        )
        return values.astype(np.float32)

    weights = {"token_embd.weight": weight(VOCAB, HIDDEN), "output_norm.weight": weight(HIDDEN)}
    if has_head:
        weights["output.weight"] = weight(VOCAB, HIDDEN)
    for layer in range(LAYERS):
        weights |= {f"blk.{layer}.{name}.weight": weight(*shape) for name, shape in SHAPES.items()}
    return weights


def interleave(rows: F32, num_heads: int) -> F32:
    """Half-split rows as the converter writes them: row j of a head to 2j, row j + head_dim / 2 to 2j + 1."""
    return rows.reshape(num_heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


@dataclass(frozen=True)
class Recipe:
    """What to write differently from the plain file."""

    quantization: GGMLQuantizationType = GGMLQuantizationType.F32
    left_out: tuple[str, ...] = ()  # metadata keys after "llama."
    architecture: str = "llama"
    rope_scaling: str = ""


def write(path: Path, weights: dict[str, F32], recipe: Recipe | None = None) -> Path:
    """A GGUF file; vectors stay float32 whatever the quantization."""
    recipe = recipe or Recipe()
    writer = gguf.GGUFWriter(path, recipe.architecture)
    integers = {
        "block_count": LAYERS,
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
    }
    for key, value in integers.items():
        if key not in recipe.left_out:
            writer.add_uint32(f"llama.{key}", value)
    for key, number in {"attention.layer_norm_rms_epsilon": EPS, "rope.freq_base": ROPE_BASE}.items():
        if key not in recipe.left_out:
            writer.add_float32(f"llama.{key}", number)
    writer.add_token_list(["a", "bc", "def"])  # arrays that the reader walks over
    writer.add_array("test.numbers", [1, 2, 3])
    writer.add_eos_token_id(2)
    if recipe.rope_scaling:
        writer.add_string("llama.rope.scaling.type", recipe.rope_scaling)
    interleaved_heads = {"attn_q": HEADS, "attn_k": KV_HEADS}
    for name, weight in weights.items():
        num_heads = interleaved_heads.get(name.split(".")[-2], 0)
        _add(writer, name, interleave(weight, num_heads) if num_heads else weight, recipe.quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, value: F32, quantization: GGMLQuantizationType) -> None:
    if value.ndim == 1 or quantization == GGMLQuantizationType.F32:
        writer.add_tensor(name, value)
    else:
        writer.add_tensor(name, quants.quantize(value, quantization), raw_dtype=quantization)


# The forward pass of one sequence, written plainly, without cache, batch or fused weights --------------------------


def plain_logits(weights: dict[str, F32], tokens: list[int]) -> Tensor:
    """[tokens, vocab] in float64."""
    w = {name: torch.from_numpy(value).double() for name, value in weights.items()}
    hidden = w["token_embd.weight"][tokens]
    for layer in range(LAYERS):
        p = {name: w[f"blk.{layer}.{name}.weight"] for name in SHAPES}
        hidden = hidden + _attend(p, _norm(hidden, p["attn_norm"]))
        x = _norm(hidden, p["ffn_norm"])
        hidden = hidden + (silu(x @ p["ffn_gate"].T) * (x @ p["ffn_up"].T)) @ p["ffn_down"].T
    return _norm(hidden, w["output_norm.weight"]) @ w.get("output.weight", w["token_embd.weight"]).T


def plain_greedy(weights: dict[str, F32], prompt: list[int], num_outputs: int) -> list[int]:
    """The greedy continuation, computed afresh for every token."""
    tokens = list(prompt)
    for _ in range(num_outputs):
        tokens.append(int(plain_logits(weights, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def _attend(p: dict[str, Tensor], x: Tensor) -> Tensor:
    length = len(x)
    q = _turn((x @ p["attn_q"].T).view(length, HEADS, HEAD_DIM))
    k = _turn((x @ p["attn_k"].T).view(length, KV_HEADS, HEAD_DIM))
    v = (x @ p["attn_v"].T).view(length, KV_HEADS, HEAD_DIM)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    heads = []
    for head in range(HEADS):
        kv_head = head // (HEADS // KV_HEADS)
        scores = (q[:, head] @ k[:, kv_head].T / HEAD_DIM**0.5).masked_fill(future, float("-inf"))
        heads.append(scores.softmax(-1) @ v[:, kv_head])
    return torch.cat(heads, dim=-1) @ p["attn_output"].T


def _turn(heads: Tensor) -> Tensor:
    """As complex numbers: element j and element j + head_dim / 2 are one, turned by position x frequency."""
    half = HEAD_DIM // 2
    frequencies = ROPE_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(len(heads), dtype=torch.float64), frequencies)[:, None, :]
    pairs = torch.complex(heads[..., :half], heads[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((pairs.real, pairs.imag), dim=-1)
