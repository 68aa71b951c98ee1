"""Who may call: the file of bearer tokens, read and checked.

The file is TOML, one [[token]] table each: a name for the logs, the SHA-256 of the token (so that whoever reads the
file cannot call), and optionally the tenant that its calls are for and its bounds. Knows no call and no gRPC.

    [[token]]
    name = "search"
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    tenant = "search"
    max_calls = 32
    max_calls_per_minute = 600
"""

import hashlib
import secrets
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from services.runtime.settings import Count, SettingsError

# A token made here; no dictionary holds it, so that a plain hash of it is safe.
TOKEN_BYTES = 32


class AccessToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One token's entry. sha256: of the token's UTF-8 bytes, in hex."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")]
    tenant: str = ""  # every call is made for this tenant; empty = whichever a request names
    max_calls: Count = 0  # open at once; 0 = no bound of its own
    max_calls_per_minute: Count = 0  # that may begin; 0 = no bound of its own


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    token: tuple[AccessToken, ...] = ()


def load(path: Path) -> tuple[AccessToken, ...]:
    """Every token of a file, at least one, names and hashes all different. Raises SettingsError."""
    try:
        tokens = msgspec.toml.decode(path.read_bytes(), type=_File).token
    except OSError as error:
        raise SettingsError(f"gateway.tokens: {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise SettingsError(f"gateway.tokens: {path}: {error}") from error
    if not tokens:
        raise SettingsError(f"gateway.tokens: {path}: no [[token]] in it")
    for what in ("name", "sha256"):
        values = [getattr(token, what).lower() for token in tokens]
        repeated = next((value for value in values if values.count(value) > 1), None)
        if repeated is not None:
            raise SettingsError(f"gateway.tokens: {path}: {what} {repeated!r} is there twice")
    return tokens


def digest(token: str) -> str:
    """What the file holds of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def mint() -> str:
    """A new token."""
    return secrets.token_urlsafe(TOKEN_BYTES)
