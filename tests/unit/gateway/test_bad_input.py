"""Every bad request is refused by name, reaches no engine, and leaves its neighbour alone."""

from collections.abc import Awaitable

import grpc
import pytest

from tandem.v1 import chat_pb2 as chat
from tandem.v1 import inference_pb2 as pb
from tandem.v1 import models_pb2 as models
from tests.unit.gateway.bad_rows import Row, rows
from tests.unit.gateway.rig import Front, error_of, read

pytestmark = pytest.mark.asyncio(loop_scope="session")

CODES = {"MODEL_NOT_FOUND": grpc.StatusCode.NOT_FOUND}
REPLIES = {
    "InferenceService/Generate": pb.GenerateResponse,
    "InferenceService/Tokenize": pb.TokenizeResponse,
    "InferenceService/Detokenize": pb.DetokenizeResponse,
    "ChatService/Chat": chat.ChatResponse,
    "ModelService/GetModel": models.GetModelResponse,
}


def sent(front: Front, row: Row) -> Awaitable[object]:
    if row.method in REPLIES:
        return front.unary(row.method, row.request, REPLIES[row.method])
    return front.stream(row.method, row.request, pb.GenerateChunk).read()


async def test_each_bad_field_is_named_and_the_neighbour_streams_on(front: Front) -> None:
    described = await front.unary("ModelService/GetModel", models.GetModelRequest(), models.GetModelResponse)
    table = list(rows(described.model))
    assert len(table) >= 60
    neighbour = front.stream_generate()
    submit = await front.engine.submit()
    for number, row in enumerate(table):
        error = await error_of(sent(front, row))
        assert (error.code, error.reason) == (CODES.get(row.reason, grpc.StatusCode.INVALID_ARGUMENT), row.reason), row
        assert error.fields == ((row.field,) if row.field else ()), row
        assert row.field in error.message
        front.engine.say(submit, f"{number} ", [number])
        assert (await read(neighbour)).text == f"{number} "
    front.engine.end(submit)
    assert (await read(neighbour)).HasField("usage")
    assert front.engine.drain() == [], "no bad request may reach the engine"


async def test_all_mistakes_are_told_at_once(front: Front) -> None:
    request = pb.GenerateRequest(text="x", tenant="t" * 1000)
    request.sampling.temperature = -1
    request.sampling.top_p = 2
    request.stopping.max_tokens = 0
    error = await error_of(sent(front, Row("InferenceService/Generate", request, "")))
    assert set(error.fields) == {"sampling.temperature", "sampling.top_p", "stopping.max_tokens", "tenant"}


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
async def test_bytes_that_are_no_message_are_refused(front: Front, method: str) -> None:
    # A lone surrogate in UTF-8 clothes, as a client in another language may send it, in `text`.
    raw = b"\x1a\x03\xed\xa0\x80"
    path = f"/tandem.v1.InferenceService/{method}"
    call: Awaitable[object] = (
        front.channel.unary_unary(path, request_serializer=bytes)(raw, timeout=5)
        if method == "Generate"
        else front.channel.unary_stream(path, request_serializer=bytes)(raw, timeout=5).read()
    )
    error = await error_of(call)
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_REQUEST")


async def test_a_message_beyond_the_limit_is_refused_by_the_transport(front: Front) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await front.generate(text="a" * (17 * 1024 * 1024))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_unknown_method_is_unimplemented(front: Front) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await front.channel.unary_unary("/tandem.v1.InferenceService/Imagine", request_serializer=bytes)(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
