"""What a server tells of its settings: every value that shapes how it serves, and nothing that opens a door."""

from collections.abc import Mapping
from typing import Any

import msgspec

from services.runtime.settings import ServerSettings

# Of the gateway's own settings those that are numbers are told, and these; whatever else there is may be a secret.
UNTOLD = frozenset({"links.keys"})
TOLD_TEXTS = frozenset({"name", "listen", "admin_listen", "metrics_listen", "otlp_endpoint"})


def about(settings: ServerSettings) -> Mapping[str, str]:
    """Settings by section and key, as text."""
    sections: dict[str, Any] = msgspec.to_builtins(settings)
    told: dict[str, str] = {}
    for section, values in sections.items():
        if not isinstance(values, dict):
            told[section] = str(values)
            continue
        for key, value in values.items():
            if section != "gateway" or key in TOLD_TEXTS or isinstance(value, int | float):
                told[f"{section}.{key}"] = str(value)
    for key in UNTOLD:
        told.pop(key, None)
    return told
