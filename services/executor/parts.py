"""Which stored tensor goes where in a model: every tensor has exactly one place, and every place exactly one tensor.

Names and shapes of a whole checkpoint are checked against its config before the first value is read: what is missing,
unknown or of another shape is an error that names it. A GGUF file stores the rows of Q and K for interleaved rotation,
in the families that llama.cpp converts so; their parts say it. Without torch: a model is inspected here, not computed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from services.executor.config import LlamaConfig
from services.executor.stored import StoredTensor
from services.model_file.errors import ModelFileError

ROPE_FACTORS = "rope_freqs.weight"
_SHOWN = 5  # names in an error


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor, a range of rows of a weight. interleaved_heads: heads whose rows must be put in order."""

    name: str
    shape: tuple[int, ...]
    interleaved_heads: int = 0


Weight = tuple[Part, ...]  # stacked along their rows; of no parts where a model has no such weight


@dataclass(frozen=True, slots=True)
class Names:
    """How a format calls the tensors. layer: what stands before those of one; ignored: what means nothing to us."""

    embedding: str
    norm: str
    head: str
    layer: str
    roles: Mapping[str, str]
    ignored: re.Pattern[str] = field(default=re.compile(r"(?!)"))

    def of_layer(self, index: int, role: str, kind: str = "weight") -> str:
        """The name of a layer's tensor."""
        return f"{self.layer.format(index)}.{self.roles[role]}.{kind}"


_ROLES = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
GGUF = Names(
    "token_embd.weight",
    "output_norm.weight",
    "output.weight",
    "blk.{}",
    {role: role for role in (*_ROLES, "attn_q_norm", "attn_k_norm")},
)
HUGGING_FACE = Names(
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
    "model.layers.{}",
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    },
    # Frequencies that older programs saved beside the weights: they are computed from the config.
    re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
)


@dataclass(frozen=True, slots=True)
class LayerParts:
    """The weights of a layer, and what only some families have: biases and norms of the heads."""

    attention_norm: Weight
    qkv: Weight
    attention_out: Weight
    ffn_norm: Weight
    gate_up: Weight
    down: Weight
    qkv_bias: Weight
    attention_out_bias: Weight
    gate_up_bias: Weight
    down_bias: Weight
    q_norm: Weight
    k_norm: Weight

    def all(self) -> Iterator[Part]:
        """Every part of the layer."""
        for name in self.__slots__:
            yield from getattr(self, name)


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of one model's tensors. is_interleaved: rows of Q and K are stored for interleaved rotation."""

    config: LlamaConfig
    names: Names
    is_interleaved: bool = False

    def embedding(self) -> Part:
        return Part(self.names.embedding, (self.config.vocab_size, self.config.hidden_size))

    def head(self) -> Part:
        return Part(self.names.head, (self.config.vocab_size, self.config.hidden_size))

    def norm(self) -> Part:
        return Part(self.names.norm, (self.config.hidden_size,))

    def rope_factors(self) -> Part:
        return Part(ROPE_FACTORS, (self.config.head_dim // 2,))

    def layer(self, index: int) -> LayerParts:
        """The parts of one layer."""
        config = self.config
        hidden, ffn, head_dim = config.hidden_size, config.ffn_size, config.head_dim
        query_rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim
        sizes = {"attn_q": query_rows, "attn_k": kv_rows, "attn_v": kv_rows, "ffn_gate": ffn, "ffn_up": ffn}
        sizes |= {"attn_output": hidden, "ffn_down": hidden}
        heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads} if self.is_interleaved else {}

        def vector(role: str, size: int) -> Weight:
            return (Part(self.names.of_layer(index, role), (size,)),)

        def matrix(columns: int, *roles: str) -> Weight:
            return tuple(
                Part(self.names.of_layer(index, role), (sizes[role], columns), heads.get(role, 0)) for role in roles
            )

        def bias(is_there: bool, *roles: str) -> Weight:
            names = [(role, self.names.of_layer(index, role, "bias")) for role in roles if is_there]
            return tuple(Part(name, (sizes[role],), heads.get(role, 0)) for role, name in names)

        return LayerParts(
            attention_norm=vector("attn_norm", hidden),
            qkv=matrix(hidden, "attn_q", "attn_k", "attn_v"),
            attention_out=matrix(query_rows, "attn_output"),
            ffn_norm=vector("ffn_norm", hidden),
            gate_up=matrix(hidden, "ffn_gate", "ffn_up"),
            down=matrix(ffn, "ffn_down"),
            qkv_bias=bias(config.qkv_bias, "attn_q", "attn_k", "attn_v"),
            attention_out_bias=bias(config.out_bias, "attn_output"),
            gate_up_bias=bias(config.ffn_bias, "ffn_gate", "ffn_up"),
            down_bias=bias(config.ffn_bias, "ffn_down"),
            q_norm=vector("attn_q_norm", head_dim) if config.head_norms else (),
            k_norm=vector("attn_k_norm", head_dim) if config.head_norms else (),
        )

    def wanted(self) -> Iterator[Part]:
        """Every part that must be there."""
        yield from (self.embedding(), self.norm())
        if self.config.has_head:
            yield self.head()
        for index in range(self.config.num_layers):
            yield from self.layer(index).all()

    def optional(self) -> Iterator[Part]:
        """What may be there besides: a head that config.json says is the embedding again, factors of the rotation."""
        if not self.config.has_head:
            yield self.head()
        yield self.rope_factors()


def check_tensors(place: object, tensors: Mapping[str, StoredTensor], layout: Layout) -> None:
    """Raises ModelFileError naming tensors that are missing, unknown or of a wrong shape. place: the file."""
    wanted, optional = list(layout.wanted()), [part for part in layout.optional() if part.name in tensors]
    known = {part.name for part in (*wanted, *optional)}
    missing = [part.name for part in wanted if part.name not in tensors]
    stray = [name for name in tensors if name not in known and not layout.names.ignored.fullmatch(name)]
    if missing or stray:
        raise ModelFileError(f"{place}: tensors missing: {_listed(missing)}; tensors unknown: {_listed(stray)}")
    for part in (*wanted, *optional):
        tensor = tensors[part.name]
        if tensor.shape != part.shape:
            raise ModelFileError(f"{tensor.path}: tensor {part.name} has shape {tensor.shape}, not {part.shape}")


def _listed(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return f"{sorted(names)[:_SHOWN]}" + (f" and {rest} more" if rest > 0 else "") if names else "none"
