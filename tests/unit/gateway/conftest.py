"""One event loop for all gateways of the test run (gRPC wants no second one), and one gateway that most tests share."""

from collections.abc import AsyncIterator, Iterator, MutableMapping
from typing import Any

import pytest
import pytest_asyncio
import structlog

from services.runtime.models import resolve
from services.runtime.settings import ModelSettings
from services.tokenizer import Tokenizer, load
from tests.unit.gateway.rig import Front, running


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load(resolve(ModelSettings()))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_front(tokenizer: Tokenizer) -> AsyncIterator[Front]:
    async with running(tokenizer) as front:
        yield front


@pytest_asyncio.fixture(loop_scope="session")
async def front(shared_front: Front) -> Front:
    """The shared gateway, with nothing left over from the test before."""
    await shared_front.settle()
    return shared_front


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    """What was logged, kept out of the output."""
    with structlog.testing.capture_logs() as entries:
        yield entries
