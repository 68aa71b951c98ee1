"""A model's shape from the config.json of its Hugging Face directory. Nothing is assumed: what is missing is an error.

The rotary embedding stands in rope_parameters, or in older files in rope_theta and rope_scaling.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.executor.config import LlamaConfig, RopeScaling
from services.executor.families import Family, family_of
from services.model_file.directory import CONFIG, eos_token_ids, name_of, read_json
from services.model_file.errors import ModelFileError

_KINDS = {int: "an integer", float: "a number", bool: "true or false", list: "a list", dict: "an object"}
_SILU = "silu"
_WINDOWED, _FULL = "sliding_attention", "full_attention"


class Fields:
    """Values of one JSON object, each of a type; whatever is wrong is a ModelFileError that names file and key."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values

    def need(self, key: str, kind: type) -> Any:
        """A value that must be there, and must not be null."""
        value = self.get(key, kind)
        if value is None:
            raise ModelFileError(f"{self.where}: {key} is missing")
        return value

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """A value, or the default when it is absent or null. A whole number is a number."""
        value = self.values.get(key)
        if value is None:
            return default
        fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise ModelFileError(f"{self.where}: {key} is {value!r}, not {_KINDS[kind]}")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number above zero."""
        value: int = self.need(key, int) if default is None else self.get(key, int, default)
        if value < 1:
            raise ModelFileError(f"{self.where}: {key} is {value}")
        return value


def read_config(directory: Path, stores_head: bool) -> LlamaConfig:
    """stores_head: whether the weights have one, which decides where config.json does not say.

    Raises ModelFileError naming the key that is missing or wrong, or what of it this model cannot express.
    """
    values = read_json(directory / CONFIG)
    fields = Fields(str(directory / CONFIG), values)
    family = family_of(values.get("model_type"), f"{fields.where}: model_type")
    activation = values.get("hidden_act", _SILU)
    if activation != _SILU:
        raise ModelFileError(f"{fields.where}: hidden_act is {activation!r}, not {_SILU!r}")
    hidden_size, num_heads, num_layers = map(fields.size, ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    head_dim, context_length = fields.size("head_dim", hidden_size // num_heads), fields.size("max_position_embeddings")
    has_bias = fields.get("attention_bias", bool, False) and not family.qkv_bias
    rope = _rope_fields(fields)
    return LlamaConfig(
        name=name_of(directory),
        num_layers=num_layers,
        hidden_size=hidden_size,
        ffn_size=fields.size("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=fields.size("num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocab_size=fields.size("vocab_size"),
        context_length=context_length,
        norm_eps=float(fields.need("rms_norm_eps", float)),
        rope_base=float(rope.need("rope_theta", float)),
        eos_token_ids=eos_token_ids(directory),
        family=values["model_type"],
        has_head=not fields.get("tie_word_embeddings", bool, not stores_head),
        qkv_bias=family.qkv_bias or has_bias,
        out_bias=has_bias,
        ffn_bias=fields.get("mlp_bias", bool, False),
        head_norms=family.head_norms,
        windows=_windows(fields, family, num_layers),
        turns=_turns(fields, family, num_layers),
        rope_scaling=_scaling(rope, context_length),
    )


def _rope_fields(fields: Fields) -> Fields:
    """The rotary embedding's own object, old or new, with the base in it."""
    old = {"rope_theta": fields.values.get("rope_theta"), **(fields.get("rope_scaling", dict) or {})}
    rope = fields.get("rope_parameters", dict) or old
    for place in (rope, fields.values):
        if place.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise ModelFileError(f"{fields.where}: partial_rotary_factor is {place['partial_rotary_factor']}, not 1")
    return Fields(fields.where, rope)


def _scaling(rope: Fields, context_length: int) -> RopeScaling | None:
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "yarn"):
        raise ModelFileError(f"{rope.where}: rope scaling of type {kind!r} is not supported")
    factor = float(rope.need("factor", float))
    if kind == "linear":
        return RopeScaling("linear", factor)
    original = rope.size("original_max_position_embeddings", context_length if kind == "yarn" else None)
    if kind == "llama3":
        low, high = (float(rope.need(f"{side}_freq_factor", float)) for side in ("low", "high"))
        return RopeScaling("llama3", factor, original, low_freq_factor=low, high_freq_factor=high)
    return RopeScaling(
        "yarn",
        factor,
        original,
        beta_fast=float(rope.get("beta_fast", float, 32.0)),
        beta_slow=float(rope.get("beta_slow", float, 1.0)),
        truncate=rope.get("truncate", bool, True),
        magnitude=_magnitude(rope, factor),
    )


def _magnitude(rope: Fields, factor: float) -> float:
    """What YaRN multiplies cosines and sines by: stated, or as its paper has it."""
    if rope.values.get("attention_factor") is not None:
        return float(rope.need("attention_factor", float))
    scale, scale_all = (rope.get(key, float, 0) for key in ("mscale", "mscale_all_dim"))
    if scale and scale_all:
        return yarn_magnitude(factor, scale) / yarn_magnitude(factor, scale_all)
    return yarn_magnitude(factor)


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """0.1 ln(factor) + 1, of the paper (arXiv 2309.00071, section 3.4)."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _windows(fields: Fields, family: Family, num_layers: int) -> tuple[int, ...]:
    if not family.window:
        return ()
    types = fields.get("layer_types", list)
    if family.window == "all":
        if "sliding_window" not in fields.values:
            raise ModelFileError(f"{fields.where}: sliding_window is missing; null says that there is none")
        return (fields.size("sliding_window"),) * num_layers if fields.values["sliding_window"] is not None else ()
    if not fields.get("use_sliding_window", bool, False):
        return ()
    window = fields.size("sliding_window")
    if types is None:
        first = fields.need("max_window_layers", int)
        return tuple(window if layer >= first else 0 for layer in range(num_layers))
    if len(types) != num_layers or not set(types) <= {_WINDOWED, _FULL}:
        raise ModelFileError(f"{fields.where}: layer_types is not {num_layers} times {_WINDOWED!r} or {_FULL!r}")
    return tuple(window if kind == _WINDOWED else 0 for kind in types)


def _turns(fields: Fields, family: Family, num_layers: int) -> tuple[bool, ...]:
    if not family.unturned:
        return ()
    stated = fields.get("no_rope_layers", list)  # 1: this layer has one
    if stated is None:
        return unturned_every(fields.size("no_rope_layer_interval", family.unturned), num_layers)
    if len(stated) != num_layers:
        raise ModelFileError(f"{fields.where}: no_rope_layers has {len(stated)} entries for {num_layers} layers")
    return tuple(bool(turns) for turns in stated)


def unturned_every(interval: int, num_layers: int) -> tuple[bool, ...]:
    """Layers that turn, but for the last of every so many."""
    return tuple((layer + 1) % interval != 0 for layer in range(num_layers))
