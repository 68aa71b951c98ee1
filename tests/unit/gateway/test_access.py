"""Bearer tokens at the door: who is let in, as whom, how often, and what a refusal says."""

import asyncio
import json
import os
from collections.abc import MutableMapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.access import Caller, Keyring, Meter
from gateway.errors import CallError
from services.runtime import access
from services.runtime.access import AccessToken
from services.runtime.settings import GatewaySettings
from services.tokenizer import Tokenizer
from tandem.v1 import inference_pb2 as pb
from tests.unit.gateway.rig import SETTINGS, Front, error_of, eventually, running

pytestmark = pytest.mark.asyncio(loop_scope="session")

GENERATE = "/tandem.v1.InferenceService/Generate"


def entry(name: str, token: str, **fields: object) -> AccessToken:
    return msgspec.structs.replace(AccessToken(name=name, sha256=access.digest(token)), **fields)


def file_of(path: Path, *tokens: AccessToken) -> Path:
    file = path / "tokens.toml"
    entries = [msgspec.structs.asdict(token) for token in tokens]
    lines = [line for entry in entries for line in ("[[token]]", *(f"{k} = {json.dumps(v)}" for k, v in entry.items()))]
    file.write_text("\n".join(lines))
    return file


def guarded(path: Path, *tokens: AccessToken) -> GatewaySettings:
    return msgspec.structs.replace(SETTINGS, tokens=str(file_of(path, *tokens)))


def generate(front: Front, *shown: str, **fields: Any) -> "grpc.aio.UnaryUnaryCall[Any, pb.GenerateResponse]":
    method = front.channel.unary_unary(GENERATE, pb.GenerateRequest.SerializeToString, pb.GenerateResponse.FromString)
    return method(
        pb.GenerateRequest(text="x", **fields), metadata=[("authorization", value) for value in shown], timeout=5
    )


async def served(front: Front, *shown: str, **fields: Any) -> str:
    """A call that must succeed; the tenant that it was served for."""
    call = generate(front, *shown, **fields)
    submit = await front.engine.submit()
    front.engine.end(submit)
    await call
    return submit.tenant


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ((), "no token"),
        (("Bearer wrong",), "not known"),
        (("Bearer ",), "not known"),
        (("right",), "bearer"),
        (("Basic right",), "bearer"),
        (("Bearer right", "Bearer right"), "one bearer token"),
    ],
)
async def test_without_the_right_token_nothing_is_served(
    tokenizer: Tokenizer, tmp_path: Path, logged: list[MutableMapping[str, Any]], shown: tuple[str, ...], why: str
) -> None:
    async with running(tokenizer, guarded(tmp_path, entry("a", "right"))) as front:
        error = await error_of(generate(front, *shown))
        assert (error.code, error.reason) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
        assert why in error.message and "right" not in error.message
        assert front.engine.drain() == []
        (line,) = [line for line in logged if line["event"] == "call.refused"]
        assert (line["method"], line["reason"]) == (GENERATE, "UNAUTHENTICATED") and "127.0.0.1" in line["peer"]
        await served(front, "Bearer right")


async def test_each_token_stands_for_its_tenant(tokenizer: Tokenizer, tmp_path: Path) -> None:
    async with running(tokenizer, guarded(tmp_path, entry("a", "one", tenant="t"), entry("b", "two"))) as front:
        assert await served(front, "bearer one") == "t"
        assert await served(front, "Bearer one", tenant="t") == "t"
        assert await served(front, "Bearer two", tenant="u") == "u"
        error = await error_of(generate(front, "Bearer one", tenant="u"))
        assert (error.code, error.reason, error.fields) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "PERMISSION_DENIED",
            ("tenant",),
        )


async def test_streams_are_refused_as_calls_are(tokenizer: Tokenizer, tmp_path: Path) -> None:
    async with running(tokenizer, guarded(tmp_path, entry("a", "right"))) as front:
        error = await error_of(front.stream_generate().read())
        assert error.code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("is_exempt", [True, False])
async def test_health_and_reflection_are_open_by_choice(tokenizer: Tokenizer, tmp_path: Path, is_exempt: bool) -> None:
    settings = guarded(tmp_path, entry("a", "right"))
    if not is_exempt:
        settings = msgspec.structs.replace(settings, tokenless=())
    async with running(tokenizer, settings) as front:
        stub = health_pb2_grpc.HealthStub(front.channel)
        request = health_pb2.HealthCheckRequest()
        ask: Any = front.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        reflect = ask(iter([b"\x3a\x00"]), timeout=5)
        if is_exempt:
            assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
            assert await reflect.read() is not grpc.aio.EOF
            return
        assert (await error_of(stub.Check(request))).code is grpc.StatusCode.UNAUTHENTICATED
        assert (await error_of(stub.Watch(request).read())).code is grpc.StatusCode.UNAUTHENTICATED
        assert (await error_of(reflect.read())).code is grpc.StatusCode.UNAUTHENTICATED
        answer = await stub.Check(request, metadata=(("authorization", "Bearer right"),))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_open_calls_of_one_token_are_bounded_and_its_neighbours_are_not(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    settings = guarded(tmp_path, entry("a", "one", max_calls=1), entry("b", "two"))
    async with running(tokenizer, settings) as front:
        first = generate(front, "Bearer one")
        submit = await front.engine.submit()
        error = await error_of(generate(front, "Bearer one"))
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
        assert error.retry_s is not None and error.quotas == ("token:a",)
        await served(front, "Bearer two")
        front.engine.end(submit)
        await first
        await served(front, "Bearer one")


async def test_a_file_that_changed_is_read_again(
    tokenizer: Tokenizer, tmp_path: Path, logged: list[MutableMapping[str, Any]]
) -> None:
    settings = guarded(tmp_path, entry("a", "old"))
    async with running(tokenizer, settings) as front:
        await served(front, "Bearer old")
        os.utime(file_of(tmp_path, entry("a", "new")), ns=(1, 1))
        await eventually(lambda: any(line["event"] == "tokens.renewed" for line in logged))
        await served(front, "Bearer new")
        assert (await error_of(generate(front, "Bearer old"))).reason == "UNAUTHENTICATED"
        file_of(tmp_path)
        await eventually(lambda: any(line["event"] == "tokens.unreadable" for line in logged))
        await served(front, "Bearer new")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_calls_a_minute_refill_steadily(clock: Clock) -> None:
    meter = Meter(entry("a", "x", max_calls_per_minute=6), clock)
    for _ in range(6):
        with meter.call():
            pass
    with pytest.raises(CallError, match="6 calls a minute") as caught, meter.call():
        pass
    assert caught.value.retry_after_s == pytest.approx(10)
    clock.now += 10
    with meter.call():
        pass
    with pytest.raises(CallError), meter.call():
        pass
    clock.now += 3600
    for _ in range(6):
        with meter.call():
            pass
    with pytest.raises(CallError), meter.call():
        pass


async def test_a_call_that_fails_gives_its_place_back(clock: Clock) -> None:
    owner = Caller("a", "", Meter(entry("a", "x", max_calls=2), clock))
    for _ in range(10):
        with pytest.raises(ZeroDivisionError), owner.call():
            raise ZeroDivisionError
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(owner.call())
        with pytest.raises(CallError, match="2 calls of a are open"):
            stack.enter_context(owner.call())


async def test_a_new_file_keeps_what_an_unchanged_token_has_used(clock: Clock) -> None:
    same, old, new = entry("a", "x", max_calls=1), entry("b", "y"), entry("b", "z")
    ring = Keyring([same, old], clock)
    shown = (("authorization", "Bearer x"),)
    with ring.caller(shown).call():
        ring.replace([same, new])
        with pytest.raises(CallError), ring.caller(shown).call():
            pass
    with pytest.raises(CallError, match="not known"):
        ring.caller((("authorization", "Bearer y"),))
    assert ring.caller((("authorization", "Bearer z"),)).name == "b"


async def test_a_flood_of_refused_calls_is_no_flood_of_lines(
    tokenizer: Tokenizer, tmp_path: Path, logged: list[MutableMapping[str, Any]]
) -> None:
    async with running(tokenizer, guarded(tmp_path, entry("a", "right"))) as front:
        await asyncio.gather(*[error_of(generate(front, "Bearer wrong")) for _ in range(100)])
        lines = [line for line in logged if line["event"] == "call.refused"]
        assert 10 <= len(lines) < 100
