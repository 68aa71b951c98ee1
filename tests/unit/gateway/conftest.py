"""One event loop for all gateways of the test run (gRPC wants no second one), and one gateway that most tests share."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

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


@pytest.fixture
def front(shared_front: Front) -> Front:
    """The shared gateway, with nothing left over from the test before."""
    shared_front.engine.drain()
    return shared_front
