"""Requests of every size on a gateway with its default bounds: refused early and by name, and no neighbour waits."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio

from services.runtime.settings import GatewaySettings
from services.tokenizer import Tokenizer
from services.wire.messages import FinishReason, Submit
from tandem.v1 import common_pb2 as common
from tandem.v1 import inference_pb2 as pb
from tests.unit.gateway.rig import Front, error_of, eventually, running

pytestmark = pytest.mark.asyncio(loop_scope="session")

MB = 1024 * 1024
# A neighbour whose call takes longer was held up.
NEIGHBOUR_S = 5.0
INVALID, EXHAUSTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED

SIZES = {
    "1 MB": (pb.GenerateRequest(text="a " * (MB // 2)), INVALID, "context"),
    "4 MB": (pb.GenerateRequest(text="a " * (2 * MB)), INVALID, "context"),
    "5 MB": (pb.GenerateRequest(text="a " * (5 * MB // 2)), INVALID, "at most 4194304 bytes"),
    "64 MB": (pb.GenerateRequest(text="a " * (32 * MB)), EXHAUSTED, "larger than max"),
    "200,000 ids": (pb.GenerateRequest(token_ids=common.TokenIds(ids=[5] * 200_000)), INVALID, "context"),
    "10,000 stops": (
        pb.GenerateRequest(text="x", stopping=common.Stopping(stop=[str(i) for i in range(10_000)])),
        INVALID,
        "stopping.stop",
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def there(tokenizer: Tokenizer) -> AsyncIterator[Front]:
    async with running(tokenizer, GatewaySettings(listen="127.0.0.1:0", drain_s=0.5)) as front:
        yield front


async def neighbour(front: Front) -> None:
    """Small calls, one after the other, until it is cancelled; none may be held up."""
    while True:
        call = front.unary("InferenceService/Generate", pb.GenerateRequest(text="x"), pb.GenerateResponse, NEIGHBOUR_S)
        submit: Submit = await front.engine.submit()
        front.engine.end(submit, FinishReason.STOP)
        await call


@pytest.mark.parametrize("size", SIZES)
async def test_what_is_too_large_is_refused_by_name_and_nobody_waits_for_it(there: Front, size: str) -> None:
    request, code, words = SIZES[size]
    small = asyncio.create_task(neighbour(there))
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await there.unary("InferenceService/Generate", request, pb.GenerateResponse, seconds=30)
    assert refusal.value.code() is code and words in (refusal.value.details() or "")
    assert not small.done(), "a neighbour was held up"
    small.cancel()
    with pytest.raises(asyncio.CancelledError):
        await small
    await there.settle()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_an_answer_that_is_too_large_ends_with_a_status_that_says_so(
    tokenizer: Tokenizer, is_stream: bool
) -> None:
    settings = GatewaySettings(listen="127.0.0.1:0", drain_s=0.5, max_message_bytes=8192)
    async with running(tokenizer, settings) as front:
        call = front.stream_generate().read() if is_stream else front.generate()
        submit = await front.engine.submit()
        front.engine.say(submit, "x" * 10_000, [1])
        if not is_stream:
            front.engine.end(submit)
        error = await error_of(call)
        assert (error.code, error.reason) == (EXHAUSTED, "MESSAGE_TOO_LARGE")
        assert "the answer has 10" in error.message and "may have 8192" in error.message
        await eventually(lambda: len(front.server.gateway.calls) == 0)
        if is_stream:
            assert (await front.engine.cancel()).identity == submit.identity
        assert front.engine.drain() == []
