"""The families of models that one forward pass computes, as the few things in which each differs from Llama.

A family is a row here: what config.json calls model_type and a GGUF file general.architecture. Sizes, rope scaling and
the like are not of a family: every model's own files say them.
"""

from dataclasses import dataclass

from services.model_file.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class Family:
    """qkv_bias: always there. head_norms: queries and keys are normalized head by head. window: sliding_window counts,
    for every layer ("all"), or where layer_types or use_sliding_window say so ("some"). unturned: every so many-th
    layer has no rotary embedding; 0: all have. interleaved_in_gguf: llama.cpp's converter reorders the rows of Q and K.
    """

    qkv_bias: bool = False
    head_norms: bool = False
    window: str = ""
    unturned: int = 0
    interleaved_in_gguf: bool = True


FAMILIES = {
    "llama": Family(),
    "mistral": Family(window="all"),
    "qwen2": Family(qkv_bias=True, window="some", interleaved_in_gguf=False),
    "qwen3": Family(head_norms=True, window="some", interleaved_in_gguf=False),
    "smollm3": Family(unturned=4, window="some"),
}


def family_of(name: object, place: str) -> Family:
    """A family by its name; place: which file and key name it. Raises ModelFileError for one that is not served."""
    if not isinstance(name, str) or name not in FAMILIES:
        raise ModelFileError(f"{place} is {name!r}; the families served are {', '.join(FAMILIES)}")
    return FAMILIES[name]
