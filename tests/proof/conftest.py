"""The proofs inject faults by the thousand; the product's loggers are told to say nothing of them.

A failing example is reported as it was found: to shrink it takes minutes, and is asked for with
`pytest tests/proof --hypothesis-profile shrink --timeout 0`.
"""

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import Phase, settings
from structlog.typing import EventDict, WrappedLogger

settings.register_profile("shrink", phases=[Phase.generate, Phase.shrink])


def _drop(_logger: WrappedLogger, _method: str, _event: EventDict) -> EventDict:
    raise structlog.DropEvent


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    yield
    structlog.configure(**before)
