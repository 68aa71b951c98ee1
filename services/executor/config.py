"""The shape of a model of the Llama families: sizes, and in what it differs from plain Llama.

gguf_config.py reads it from a GGUF file's metadata and hf_config.py from a config.json; nothing is assumed there, what
is missing is an error. Knows no file.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the rotary frequencies were stretched; the words and numbers are config.json's. Formulas: rope_angles.py.

    original_context: positions that the model was trained with before; factor: how many times as far it reaches now.
    magnitude: what cosines and sines are multiplied by (YaRN).
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes in elements. rope_base: the base of the rotary frequencies.

    windows: positions that a query of each layer sees, 0 = all; turns: whether each layer has a rotary embedding. Both
    have an entry a layer, or none when all layers are alike: no window, and turned. The biases: of q, k and v, of the
    attention's output, of all three products of the feed-forward part.
    """

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
    family: str = "llama"
    has_head: bool = False  # of its own; if not, the embedding serves as one
    qkv_bias: bool = False
    out_bias: bool = False
    ffn_bias: bool = False
    head_norms: bool = False
    windows: tuple[int, ...] = ()
    turns: tuple[bool, ...] = ()
    rope_scaling: RopeScaling | None = None

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token adds to the KV cache."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim

    def window(self, layer: int) -> int:
        """Positions that a query of a layer sees, its own included; 0: all."""
        return self.windows[layer] if self.windows else 0

    def turns_at(self, layer: int) -> bool:
        """Whether a layer has a rotary embedding."""
        return self.turns[layer] if self.turns else True
