"""Reflection resolves every service and every method, under both versions of its protocol, as grpcurl and ghz ask."""

from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2 as pb

from gateway.health import SERVICE_NAME as HEALTH
from gateway.reflection import SERVICE_NAMES as REFLECTIONS
from gateway.server import SERVICE_NAMES, SERVICES
from tandem.v1 import inference_pb2
from tests.unit.gateway.rig import Front

pytestmark = pytest.mark.asyncio(loop_scope="session")

METHODS = [method.full_name for service in SERVICES for method in service.methods]
OWN_METHODS = [f"{service}.ServerReflectionInfo" for service in REFLECTIONS]
EVERY_NAME = [*SERVICE_NAMES, HEALTH, *REFLECTIONS]
SYMBOLS = [*EVERY_NAME, *METHODS, *OWN_METHODS, f"{HEALTH}.Check", f"{HEALTH}.Watch", "tandem.v1.GenerateRequest.text"]


async def ask(front: Front, service: str, *requests: pb.ServerReflectionRequest) -> list[pb.ServerReflectionResponse]:
    async def each() -> AsyncIterator[pb.ServerReflectionRequest]:
        for request in requests:
            yield request

    call = front.channel.stream_stream(
        f"/{service}/ServerReflectionInfo",
        request_serializer=pb.ServerReflectionRequest.SerializeToString,
        response_deserializer=pb.ServerReflectionResponse.FromString,
    )
    return [reply async for reply in call(each(), timeout=5)]


def pool_of(reply: pb.ServerReflectionResponse) -> descriptor_pool.DescriptorPool:
    """What a client builds of the files it was sent."""
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(raw)
        for raw in reply.file_descriptor_response.file_descriptor_proto
    ]
    pool = descriptor_pool.DescriptorPool()
    # Dependencies come after the file that needs them.
    for file in reversed(files):
        pool.Add(file)
    return pool


@pytest.mark.parametrize("service", REFLECTIONS)
async def test_every_service_is_listed(front: Front, service: str) -> None:
    (reply,) = await ask(front, service, pb.ServerReflectionRequest(list_services=""))
    assert {listed.name for listed in reply.list_services_response.service} == set(EVERY_NAME)


@pytest.mark.parametrize("service", REFLECTIONS)
async def test_every_symbol_resolves_to_a_file_that_holds_it(front: Front, service: str) -> None:
    requests = [pb.ServerReflectionRequest(file_containing_symbol=symbol) for symbol in SYMBOLS]
    for symbol, reply in zip(SYMBOLS, await ask(front, service, *requests), strict=True):
        assert reply.WhichOneof("message_response") == "file_descriptor_response", symbol
        pool = pool_of(reply)
        try:
            pool.FindFileContainingSymbol(symbol)
        except KeyError:
            pool.FindMethodByName(symbol)


async def test_a_client_that_knows_nothing_can_make_a_call(front: Front) -> None:
    """From reflection alone: find the method, build its request, send it, read the reply."""
    symbol = "tandem.v1.InferenceService.Tokenize"
    (reply,) = await ask(front, REFLECTIONS[0], pb.ServerReflectionRequest(file_containing_symbol=symbol))
    method = pool_of(reply).FindMethodByName(symbol)
    request = message_factory.GetMessageClass(method.input_type)(text="Hello world")
    call = front.channel.unary_unary(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=inference_pb2.TokenizeResponse.FromString,
    )
    assert list((await call(request, timeout=5)).token_ids) == [19556, 905]


@pytest.mark.parametrize("service", REFLECTIONS)
async def test_what_is_unknown_is_not_found_and_the_stream_goes_on(front: Front, service: str) -> None:
    requests = [
        pb.ServerReflectionRequest(file_containing_symbol="tandem.v1.Nothing"),
        pb.ServerReflectionRequest(file_by_filename="no/such.proto"),
        pb.ServerReflectionRequest(file_by_filename="tandem/v1/chat.proto"),
        pb.ServerReflectionRequest(all_extension_numbers_of_type="tandem.v1.GenerateRequest"),
        pb.ServerReflectionRequest(all_extension_numbers_of_type="tandem.v1.Nothing"),
    ]
    kinds = [reply.WhichOneof("message_response") for reply in await ask(front, service, *requests)]
    assert kinds == [
        "error_response",
        "error_response",
        "file_descriptor_response",
        "all_extension_numbers_response",
        "error_response",
    ]


async def test_only_the_two_reflection_services_answer(front: Front) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(front, "grpc.reflection.v2.ServerReflection", pb.ServerReflectionRequest(list_services=""))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
