"""Which attention runs: what is installed and what each implementation can do, as one table.

A pure function of facts, so that every row of it is tested anywhere; `facts_of` looks at this machine. Steps of one
token a row (decode) may run in another implementation than the rest (mixed): flash-attn 2 and torch's own varlen_attn
cut rows by lengths that the host tells, which a captured step cannot, so Triton's kernel decodes beside them.
"""

import importlib.util
from dataclasses import dataclass

import torch

from services.runtime.settings import SettingsError

FLASH_2_BLOCK = 256  # positions of a block that flash-attn 2, and torch's copy of it, can page


@dataclass(frozen=True, slots=True)
class Facts:
    """Of a machine and a model. capability: of the GPU, (0, 0) without one. has_*: what can be imported."""

    capability: tuple[int, int] = (0, 0)
    torch_version: tuple[int, int] = (0, 0)
    has_flash_3: bool = False
    has_flash_2: bool = False
    has_triton: bool = False
    is_half: bool = True
    block_size: int = 16


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementations, by name, and why each better one was passed over."""

    decode: str
    mixed: str
    passed_over: tuple[str, ...] = ()


def choose(facts: Facts, asked: str = "auto") -> Choice:
    """The best there is, or the one asked for; raises SettingsError when that one cannot run here."""
    reasons = _reasons(facts)
    possible = [name for name, reason in reasons.items() if not reason]
    if asked != "auto" and asked not in possible:
        raise SettingsError(f"executor.attention: {asked} cannot run here: {reasons[asked]}")
    mixed = possible[0] if asked == "auto" else asked
    decode = mixed
    if mixed in ("flash2", "varlen"):
        decode = "triton" if "triton" in possible else "gather"
    better = list(reasons)[: list(reasons).index(mixed)]
    return Choice(decode, mixed, tuple(f"{name}: {reasons[name]}" for name in better if reasons[name]))


def _reasons(facts: Facts) -> dict[str, str]:
    """Why each implementation, the best first, cannot run; empty where it can."""
    half = "" if facts.is_half else "it computes in 16 bits only"
    ampere = "" if facts.capability >= (8, 0) else "it needs a GPU of capability 8.0"
    blocks = "" if facts.block_size % FLASH_2_BLOCK == 0 else f"it pages blocks of a multiple of {FLASH_2_BLOCK} only"
    hopper = "" if facts.capability[0] == 9 else "it needs a Hopper GPU"
    paging = "" if facts.torch_version >= (2, 12) else "this torch pages nothing"
    return {
        "flash3": ("" if facts.has_flash_3 else "flash_attn_interface is not installed") or hopper or half,
        "flash2": ("" if facts.has_flash_2 else "flash_attn is not installed") or ampere or half or blocks,
        "varlen": paging or ampere or half or blocks,
        "triton": ("" if facts.has_triton else "triton is not installed") or ampere,
        "gather": "",
    }


def facts_of(device: torch.device, dtype: torch.dtype, block_size: int) -> Facts:
    """This machine's."""
    version = torch.__version__.split(".")
    return Facts(
        capability=torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0),
        torch_version=(int(version[0]), int(version[1])),
        has_flash_3=_is_installed("flash_attn_interface"),
        has_flash_2=_is_installed("flash_attn"),
        has_triton=_is_installed("triton"),
        is_half=dtype in (torch.bfloat16, torch.float16),
        block_size=block_size,
    )


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
