"""Models of published shapes with random weights, made on the device in a second or two; and small ones for a dry run.

Random, never zero: products of zeros run faster than a model's do. Scaled so that hidden states keep their size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.executor.config import LlamaConfig
from services.executor.cuda.device_operations import PlainOperations
from services.executor.cuda.plan import DevicePlan
from services.executor.model import Layer, Llama
from services.executor.operations import Operations
from services.executor.rope import RopeTables
from services.executor.rope_angles import make_angles


def _config(name: str, layers: int, sizes: tuple[int, int, int], heads: tuple[int, int, int]) -> LlamaConfig:
    hidden, ffn, vocab = sizes
    num_heads, num_kv_heads, head_dim = heads
    return LlamaConfig(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        ffn_size=ffn,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
        context_length=8192 if layers > 4 else 256,
        norm_eps=1e-5,
        rope_base=500_000.0,
        eos_token_ids=(2,),
        has_head=name == "8B",
    )


SHAPES = {
    "135M": _config("135M", 30, (576, 1536, 49152), (9, 3, 64)),
    "1B": _config("1B", 16, (2048, 8192, 128256), (32, 8, 64)),
    "8B": _config("8B", 32, (4096, 14336, 128256), (32, 8, 128)),
}
SMALL = _config("small", 2, (96, 192, 512), (6, 2, 16))


@dataclass(frozen=True)
class Made:
    """read_bytes: weights that one decode step reads, each once."""

    model: Llama[DevicePlan]
    read_bytes: int


def make(config: LlamaConfig, operations: "PlainOperations | Operations[DevicePlan]", where: Tensor) -> Made:
    """where: an empty tensor of the device and the type wanted. The same seed gives the same weights on one device."""
    generator = torch.Generator(where.device).manual_seed(5)
    counted = [0]

    def weight(rows: int, columns: int) -> Tensor:
        values = where.new_empty(rows, columns).normal_(0, columns**-0.5, generator=generator)
        counted[0] += values.numel() * values.element_size()
        return values

    norm = torch.ones(config.hidden_size, device=where.device)
    tables = RopeTables.of(make_angles(config.rope_base, config.head_dim, config.context_length))
    rope = type(tables)(tables.cos.to(where.device), tables.sin.to(where.device))
    queries, pairs = config.num_heads * config.head_dim, 2 * config.num_kv_heads * config.head_dim
    embedding = where.new_empty(config.vocab_size, config.hidden_size).normal_(generator=generator)
    layers = [
        Layer(
            attention_norm=norm,
            qkv=operations.pack(weight(queries + pairs, config.hidden_size)),
            attention_out=operations.pack(weight(config.hidden_size, queries)),
            ffn_norm=norm,
            gate_up=operations.pack(weight(2 * config.ffn_size, config.hidden_size)),
            down=operations.pack(weight(config.hidden_size, config.ffn_size)),
            rope=rope,
        )
        for _ in range(config.num_layers)
    ]
    head = weight(config.vocab_size, config.hidden_size)
    model: Llama[DevicePlan] = Llama(config, embedding, layers, norm, operations.pack(head), operations)
    return Made(model, counted[0])
