"""ControlService: what it tells, what it orders, and what it refuses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc
import msgspec
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.engine import Phase
from gateway.exposition import rendered
from gateway.server import EngineGone
from services.runtime import logs
from services.runtime.access import digest
from services.runtime.settings import GatewaySettings
from services.tokenizer import Tokenizer
from services.wire.messages import Control, ControlReply, ControlVerb, Draining, FinishReason, Load, TextBatch
from tandem.v1 import control_pb2 as pb
from tests.unit.gateway.rig import SETTINGS, Front, error_of, eventually, read, rest, running, text_end
from tests.unit.gateway.test_cancel import slow_channel, stuck_stream

pytestmark = pytest.mark.asyncio(loop_scope="session")

R = TypeVar("R", bound=Message)
SERVING = health_pb2.HealthCheckResponse.SERVING
ADMIN = msgspec.structs.replace(SETTINGS, admin_listen="127.0.0.1:0")
LOAD = Load(3, 2, 10, 40, 1.5, num_steps=100, num_output_tokens=1000, num_prompt_tokens=500, time_ns=10**9)


class Desk:
    """An operator's channel to a gateway, and the scheduler's side of it."""

    def __init__(self, front: Front, channel: grpc.aio.Channel) -> None:
        self.front = front
        self.channel = channel

    def call(self, method: str, request: Message, reply: type[R]) -> "grpc.aio.UnaryUnaryCall[Message, R]":
        path = f"/tandem.v1.ControlService/{method}"
        serialize = type(request).SerializeToString
        return self.channel.unary_unary(path, serialize, reply.FromString)(request, timeout=10)

    def watch(self, **fields: int) -> "grpc.aio.UnaryStreamCall[Message, pb.LoadReport]":
        path = "/tandem.v1.ControlService/WatchLoad"
        serialize = pb.WatchLoadRequest.SerializeToString
        request = pb.WatchLoadRequest(**fields)
        return self.channel.unary_stream(path, serialize, pb.LoadReport.FromString)(request, timeout=10)

    async def ordered(self, num_affected: int = 0) -> Control:
        """The next order, answered."""
        orders: list[Control] = []

        def look() -> bool:
            orders.extend(message for message in self.front.engine.drain() if isinstance(message, Control))
            return bool(orders)

        await eventually(look)
        (order,) = orders
        self.front.engine.tell(ControlReply(order.number, True, num_affected=num_affected))
        return order

    async def give_load(self, load: Load) -> None:
        """Answer the next order, which is for the load."""
        order = asyncio.ensure_future(self.ordered())
        self.front.engine.tell(load)
        assert (await order).verb is ControlVerb.LOAD


@asynccontextmanager
async def desk(tokenizer: Tokenizer, settings: GatewaySettings = ADMIN, is_ready: bool = True) -> AsyncIterator[Desk]:
    async with (
        running(tokenizer, settings, is_ready=is_ready) as front,
        grpc.aio.insecure_channel(front.server.operations.admin_address) as channel,
    ):
        yield Desk(front, channel)


async def answered(desk: Desk, call: Awaitable[R], num_affected: int = 0) -> tuple[R, Control]:
    """What a call answers once its order is carried out, and the order."""
    waiting = asyncio.ensure_future(call)
    order = await desk.ordered(num_affected)
    return await waiting, order


async def test_a_server_says_what_it_is_from_its_start_on(tokenizer: Tokenizer) -> None:
    async with desk(tokenizer, is_ready=False) as there:
        info = await there.call("GetServerInfo", pb.GetServerInfoRequest(), pb.GetServerInfoResponse)
        assert info.state == pb.SERVER_STATE_STARTING
        assert not info.HasField("model") and not info.HasField("load")
        there.front.engine.ready()
        there.front.engine.tell(LOAD)
        await eventually(lambda: there.front.server.gateway.engine.load is not None)
        await eventually(lambda: there.front.server.gateway.engine.phase is Phase.READY)
        stream = there.front.stream_generate()
        await there.front.engine.submit()
        info = await there.call("GetServerInfo", pb.GetServerInfoRequest(), pb.GetServerInfoResponse)
        assert (info.state, info.version, info.gateway) == (pb.SERVER_STATE_READY, "0.1.0", "gateway-0")
        assert info.address == there.front.address and 0 < info.uptime_s < 600
        assert (info.model.name, info.model.num_blocks, info.load.num_waiting) == ("smol", 63, 3)
        assert info.num_open_calls == 1
        stream.cancel()


async def test_the_load_comes_at_once_and_then_with_rates_of_its_own(tokenizer: Tokenizer) -> None:
    async with desk(tokenizer) as there:
        watch = there.watch(interval_ms=100)
        await there.give_load(LOAD)
        first = await read(watch)
        assert (first.num_waiting, first.num_running, first.num_free_blocks, first.kv_usage) == (3, 2, 10, 0.75)
        assert not first.HasField("prefix_cache_hit_rate")
        later = msgspec.structs.replace(
            LOAD,
            num_output_tokens=1100,
            num_prompt_tokens=540,
            num_steps=120,
            num_looked_up_tokens=40,
            num_cached_tokens=10,
            is_paused=True,
            time_ns=3 * 10**9,
        )
        await there.give_load(later)
        second = await read(watch)
        assert (second.output_tokens_per_s, second.prompt_tokens_per_s, second.steps_per_s) == (50, 20, 10)
        assert second.prefix_cache_hit_rate == 0.25 and second.is_paused
        watch.cancel()


@pytest.mark.parametrize("interval_ms", [0, 99, 60_001])
async def test_an_interval_out_of_bounds_is_refused(tokenizer: Tokenizer, interval_ms: int) -> None:
    async with desk(tokenizer) as there:
        error = await error_of(there.watch(interval_ms=interval_ms).read())
        assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ("interval_ms",))


async def test_more_watchers_than_may_be_are_refused_until_one_leaves(tokenizer: Tokenizer) -> None:
    async with desk(tokenizer, msgspec.structs.replace(ADMIN, max_load_watchers=1)) as there:
        first = there.watch()
        await there.give_load(LOAD)
        await read(first)
        num_tasks = len(asyncio.all_tasks())
        assert (await error_of(there.watch().read())).reason == "TOO_MANY_CALLS"
        first.cancel()
        await eventually(lambda: len(asyncio.all_tasks()) < num_tasks)
        second = there.watch()
        await there.give_load(LOAD)
        await read(second)
        second.cancel()


async def test_calls_are_cancelled_by_id_and_the_unknown_are_named(tokenizer: Tokenizer) -> None:
    async with desk(tokenizer) as there:
        stream, call = there.front.stream_generate(request_id="a"), there.front.generate(request_id="b")
        kept = there.front.generate(request_id="kept")
        submits = {s.identity.request: s for s in [await there.front.engine.submit() for _ in range(3)]}
        there.front.engine.say(submits["a"], "text", [1])
        await read(stream)
        request = pb.CancelRequest(request_ids=["a", "b", "nobody"])
        reply = await there.call("Cancel", request, pb.CancelResponse)
        assert (reply.num_cancelled, list(reply.unknown_request_ids)) == (2, ["nobody"])
        for waits in (stream.read(), call):
            error = await error_of(waits)
            assert (error.code, error.reason) == (grpc.StatusCode.CANCELLED, "CANCELLED")
        cancelled = {(await there.front.engine.cancel()).identity.request for _ in range(2)}
        assert cancelled == {"a", "b"}
        there.front.engine.end(submits["kept"])
        await kept


async def test_a_cancelled_call_whose_client_does_not_read_is_let_go(tokenizer: Tokenizer) -> None:
    async with desk(tokenizer) as there, slow_channel(there.front) as channel:
        submit, rest_of_it = await stuck_stream(there.front, channel)
        (call,) = there.front.server.gateway.calls
        request = pb.CancelRequest(request_ids=[call.identity.request])
        assert (await there.call("Cancel", request, pb.CancelResponse)).num_cancelled == 1
        assert (await there.front.engine.cancel()).identity == submit.identity
        await eventually(lambda: len(there.front.server.gateway.calls) == 0)
        assert (await error_of(rest_of_it)).reason == "CANCELLED"


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_call_whose_end_is_untold_is_cancelled_like_any_other(tokenizer: Tokenizer, is_stream: bool) -> None:
    async with desk(tokenizer) as there:
        gateway = there.front.server.gateway
        call = there.front.stream_generate().read() if is_stream else there.front.generate()
        told = asyncio.ensure_future(error_of(call))
        identity = (await there.front.engine.submit()).identity
        gateway.absorb_texts([TextBatch(1, (), (text_end(identity, FinishReason.STOP),))])
        assert gateway.cancel(identity.request, "enough")
        assert (await told).reason == "CANCELLED"
        await eventually(lambda: len(gateway.calls) == 0)
        assert there.front.engine.drain() == []


async def test_all_calls_are_cancelled_by_the_scheduler(tokenizer: Tokenizer) -> None:
    async with desk(tokenizer) as there:
        reply, order = await answered(there, there.call("Cancel", pb.CancelRequest(all=True), pb.CancelResponse), 17)
        assert (reply.num_cancelled, order.verb) == (17, ControlVerb.CANCEL_ALL)


@pytest.mark.parametrize(
    "fields", [{}, {"all": True, "request_ids": ["a"]}, {"request_ids": ["a"] * 1025}], ids=["none", "both", "many"]
)
async def test_a_cancel_of_nothing_in_particular_is_refused(tokenizer: Tokenizer, fields: dict[str, object]) -> None:
    async with desk(tokenizer) as there:
        request = pb.CancelRequest(**fields)  # type: ignore[arg-type]
        error = await error_of(there.call("Cancel", request, pb.CancelResponse))
        assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ("request_ids",))


async def test_orders_reach_the_scheduler(tokenizer: Tokenizer) -> None:
    async with desk(tokenizer) as there:
        flush = there.call("FlushPrefixCache", pb.FlushPrefixCacheRequest(), pb.FlushPrefixCacheResponse)
        flushed, order = await answered(there, flush, 5)
        assert (flushed.num_blocks, order.verb) == (5, ControlVerb.FLUSH_CACHE)
        _, order = await answered(there, there.call("Pause", pb.PauseRequest(), pb.PauseResponse))
        assert order.verb is ControlVerb.PAUSE
        _, order = await answered(there, there.call("Resume", pb.ResumeRequest(), pb.ResumeResponse))
        assert order.verb is ControlVerb.RESUME


async def test_an_order_that_is_not_answered_fails(tokenizer: Tokenizer) -> None:
    async with desk(tokenizer, msgspec.structs.replace(ADMIN, order_timeout_s=0.05)) as there:
        error = await error_of(there.call("Pause", pb.PauseRequest(), pb.PauseResponse))
        assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_READY")
        there.front.engine.drain()
        there.front.engine.tell(ControlReply(1, True))  # too late, for nobody
        await answered(there, there.call("Pause", pb.PauseRequest(), pb.PauseResponse))


async def test_who_watches_a_dying_engine_does_not_wait_for_ever(tokenizer: Tokenizer) -> None:
    async with desk(tokenizer) as there:
        call = there.front.generate()
        await there.front.engine.submit()
        watch = there.watch(interval_ms=100)
        await there.give_load(LOAD)
        await read(watch)
        there.front.server.gateway.engine.die("gone")
        with pytest.raises(grpc.aio.AioRpcError):
            await watch.read()
        assert (await error_of(call)).reason == "ENGINE_DEAD"
        with pytest.raises(EngineGone, match="gone"):
            await there.front.serving


async def test_a_drain_turns_health_first_and_refuses_calls_after_its_delay(tokenizer: Tokenizer) -> None:
    async with desk(tokenizer, msgspec.structs.replace(ADMIN, drain_delay_s=0.3)) as there:
        front = there.front
        stub = health_pb2_grpc.HealthStub(there.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await read(watch)).status == health_pb2.HealthCheckResponse.SERVING
        drain = asyncio.ensure_future(there.call("Drain", pb.DrainRequest(wait=True), pb.DrainResponse))
        assert (await read(watch)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        late = front.stream_generate()  # of a client that has not heard yet
        submit = await front.engine.submit()
        assert (await there.ordered()).verb is ControlVerb.DRAIN
        front.engine.tell(Draining())
        await eventually(lambda: front.server.gateway.engine.phase is Phase.DRAINING)
        error = await error_of(front.generate())
        assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING") and error.retry_s is not None
        assert not drain.done()
        front.engine.say(submit, "to the end", [1])
        front.engine.end(submit)
        assert "".join(chunk.text for chunk in await rest(late)) == "to the end"
        assert (await drain).num_open_calls == 0
        info = await there.call("GetServerInfo", pb.GetServerInfoRequest(), pb.GetServerInfoResponse)
        assert info.state == pb.SERVER_STATE_DRAINING


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    set_here: list[str] = []
    monkeypatch.setattr(logs, "set_level", set_here.append)
    return set_here


async def test_log_levels_are_set_here_and_passed_on(tokenizer: Tokenizer, levels: list[str]) -> None:
    async with desk(tokenizer) as there:
        request = pb.SetLogLevelRequest(level="debug")
        _, order = await answered(there, there.call("SetLogLevel", request, pb.SetLogLevelResponse))
        assert (order.verb, order.argument) == (ControlVerb.LOG_LEVEL, "debug scheduler executor detokenizer")
        assert levels == ["debug"]
        request = pb.SetLogLevelRequest(level="error", services=["executor"])
        _, order = await answered(there, there.call("SetLogLevel", request, pb.SetLogLevelResponse))
        assert order.argument == "error executor" and levels == ["debug"]
        request = pb.SetLogLevelRequest(level="info", services=["gateway"])
        await there.call("SetLogLevel", request, pb.SetLogLevelResponse)
        assert levels == ["debug", "info"]


@pytest.mark.parametrize(
    ("level", "services", "field"),
    [("loud", [], "level"), ("", [], "level"), ("info", ["gateway", "kernel"], "services[1]")],
)
async def test_unknown_levels_and_services_are_refused(
    tokenizer: Tokenizer, level: str, services: list[str], field: str
) -> None:
    async with desk(tokenizer) as there:
        request = pb.SetLogLevelRequest(level=level, services=services)
        error = await error_of(there.call("SetLogLevel", request, pb.SetLogLevelResponse))
        assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, (field,))


async def test_operators_have_an_address_of_their_own_or_none(tokenizer: Tokenizer) -> None:
    async with desk(tokenizer) as there:
        path = "/tandem.v1.ControlService/Pause"
        call = there.front.channel.unary_unary(path, pb.PauseRequest.SerializeToString, pb.PauseResponse.FromString)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(pb.PauseRequest(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    async with running(tokenizer, msgspec.structs.replace(SETTINGS, admin_listen="")) as front:
        assert front.server.operations.admin_address == ""


async def test_an_open_admin_port_asks_for_tokens_of_its_own(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "admin.toml"
    path.write_text(f'[[token]]\nname = "ops"\nsha256 = "{digest("sesame")}"\n')
    async with desk(tokenizer, msgspec.structs.replace(ADMIN, admin_tokens=str(path))) as there:
        request = pb.GetServerInfoRequest()
        error = await error_of(there.call("GetServerInfo", request, pb.GetServerInfoResponse))
        assert error.code is grpc.StatusCode.UNAUTHENTICATED
        assert 'code="UNAUTHENTICATED"' in scraped(there.front)
        method = there.channel.unary_unary(
            "/tandem.v1.ControlService/GetServerInfo",
            pb.GetServerInfoRequest.SerializeToString,
            pb.GetServerInfoResponse.FromString,
        )
        info = await method(request, metadata=(("authorization", "Bearer sesame"),), timeout=5)
        assert info.gateway == "gateway-0"
        health = health_pb2_grpc.HealthStub(there.channel)  # probes carry none
        assert (await health.Check(health_pb2.HealthCheckRequest(), timeout=5)).status == SERVING


def scraped(front: Front) -> str:
    """What Prometheus would read now."""
    return b"".join(rendered(family) for family in front.server.operations.metrics.families()).decode()
