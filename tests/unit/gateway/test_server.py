"""The life of a server: starting, ready, draining, dead; and what each tells its clients."""

import asyncio
import logging

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.engine import Phase, VocabularyMismatch
from gateway.server import SERVICE_NAMES, Ending, EngineGone, Links, Server
from services.tokenizer import Tokenizer
from services.wire.link import LinkBroken
from services.wire.messages import Draining, EngineDead, FailureReason, Load, Submit
from tandem.v1 import inference_pb2 as pb
from tandem.v1 import models_pb2 as models
from tests.unit.gateway.rig import (
    CARD,
    READY,
    SETTINGS,
    TIMING,
    FakeEngine,
    Front,
    error_of,
    eventually,
    read,
    rest,
    running,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(front: Front, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(front.channel)
    reply = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
    return int(reply.status)


async def test_before_the_engine_is_ready_calls_are_told_to_come_back(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, is_ready=False) as front:
        get_model = front.unary("ModelService/GetModel", models.GetModelRequest(), models.GetModelResponse)
        tokenize = front.unary("InferenceService/Tokenize", pb.TokenizeRequest(text="x"), pb.TokenizeResponse)
        for call in (front.generate(), front.stream_generate().read(), get_model, tokenize):
            error = await error_of(call)
            assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_READY")
            assert error.retry_s is not None
        for name in ("", *SERVICE_NAMES):
            assert await health(front, name) == NOT_SERVING
        assert [message for message in front.engine.drain() if message] == []


async def test_ready_needs_the_executor_and_the_detokenizer(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, is_ready=False) as front:
        front.engine.tell(READY)
        await asyncio.sleep(0.1)
        assert front.server.gateway.engine.phase is Phase.STARTING
        front.engine.show_text_side()
        await eventually(lambda: front.server.gateway.engine.phase is Phase.READY)
        for name in ("", *SERVICE_NAMES):
            assert await health(front, name) == SERVING
        call = front.generate()
        front.engine.end(await front.engine.submit())
        await call


async def test_health_of_an_unknown_service_is_not_found(front: Front) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await health(front, "tandem.v1.Nobody")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watchers_of_health_see_every_change(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, is_ready=False) as front:
        stub = health_pb2_grpc.HealthStub(front.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE_NAMES[0]))
        assert (await read(watch)).status == NOT_SERVING
        front.engine.ready()
        assert (await read(watch)).status == SERVING
        front.engine.tell(Draining())
        assert (await read(watch)).status == NOT_SERVING


async def test_watchers_of_health_hear_of_a_death(tokenizer: Tokenizer) -> None:
    async with running(tokenizer) as front:
        stub = health_pb2_grpc.HealthStub(front.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await read(watch)).status == SERVING
        call = front.generate()  # until its client is told, the server stays
        await front.engine.submit()
        front.engine.tell(EngineDead("gone"))
        assert (await read(watch)).status == NOT_SERVING
        assert (await error_of(call)).reason == "ENGINE_DEAD"
        with pytest.raises(EngineGone):
            await asyncio.wait_for(front.serving, 5)


async def test_a_draining_server_finishes_what_is_open_and_takes_nothing_new(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, msgspec.structs.replace(SETTINGS, drain_s=30)) as front:
        stream = front.stream_generate()
        submit = await front.engine.submit()
        front.engine.say(submit, "a", [1])
        await read(stream)
        front.server.stop(Ending.DRAIN)
        await eventually(lambda: front.server.gateway.engine.phase is Phase.DRAINING)
        error = await error_of(front.generate())
        assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert error.retry_s is not None
        assert await health(front) == NOT_SERVING
        front.engine.say(submit, "b", [2])
        front.engine.end(submit)
        assert [chunk.text for chunk in await rest(stream)] == ["b"]
        await asyncio.wait_for(front.serving, 5)


async def test_what_does_not_finish_in_time_is_told_that_the_server_drains(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, msgspec.structs.replace(SETTINGS, drain_s=0.05)) as front:
        call = front.generate()
        submit = await front.engine.submit()
        front.server.stop(Ending.DRAIN)
        error = await error_of(call)
        assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert (await front.engine.cancel()).identity == submit.identity
        await asyncio.wait_for(front.serving, 5)


async def test_a_dead_engine_ends_every_call_at_once(tokenizer: Tokenizer) -> None:
    async with running(tokenizer) as front:
        stream, call = front.stream_generate(), front.generate()
        submits = [await front.engine.submit(), await front.engine.submit()]
        for submit in submits:
            front.engine.say(submit, "a", [1])
        await read(stream)
        front.engine.tell(EngineDead("the executor is gone"))
        for waits in (stream.read(), call):
            error = await error_of(waits)
            assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_DEAD")
            assert error.message == "the executor is gone"
            assert error.trailers["x-tandem-completion-tokens"] == "1"
        with pytest.raises(EngineGone, match="the executor is gone"):
            await asyncio.wait_for(front.serving, 5)


@pytest.mark.parametrize("peer", ["scheduler", "detokenizer"])
async def test_a_peer_that_falls_silent_is_dead(tokenizer: Tokenizer, peer: str) -> None:
    timing = msgspec.structs.replace(TIMING, heartbeat_s=0.05, death_s=0.3)
    async with running(tokenizer, timing=timing) as front:
        call = front.generate()
        await front.engine.submit()
        speaks = front.engine.show_text_side if peer == "scheduler" else front.engine.show_scheduler

        async def keep_speaking() -> None:
            while True:
                speaks()
                await asyncio.sleep(0.02)

        voice = asyncio.create_task(keep_speaking())
        error = await error_of(call)
        assert (error.reason, error.message) == ("ENGINE_DEAD", f"the {peer} is silent")
        with pytest.raises(EngineGone):
            await asyncio.wait_for(front.serving, 5)
        voice.cancel()


async def test_a_link_that_breaks_ends_every_call_and_the_server(tokenizer: Tokenizer) -> None:
    async with running(tokenizer) as front:
        call = front.generate()
        await front.engine.submit()
        front.engine.break_text_link()
        error = await error_of(call)
        assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_DEAD")
        with pytest.raises(LinkBroken):
            await asyncio.wait_for(front.serving, 5)


async def test_told_that_the_engine_is_dead_it_ends_every_call_and_leaves_in_peace(tokenizer: Tokenizer) -> None:
    async with running(tokenizer) as front:
        call = front.generate()
        await front.engine.submit()
        front.server.stop(Ending.ENGINE_DEAD)
        assert (await error_of(call)).reason == "ENGINE_DEAD"
        await asyncio.wait_for(front.serving, 5)


async def test_told_so_while_it_drains_it_waits_no_longer(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, msgspec.structs.replace(SETTINGS, drain_s=300)) as front:
        call = front.generate()
        await front.engine.submit()
        front.server.stop(Ending.DRAIN)
        front.server.stop(Ending.ENGINE_DEAD)
        assert (await error_of(call)).reason == "ENGINE_DEAD"
        await asyncio.wait_for(front.serving, 5)


async def test_the_heart_beats_once_the_tokenizer_is_there(front: Front) -> None:
    await eventually(lambda: front.engine.drain() == [] and bool(front.engine.submit_inlet.last_heard()))


async def test_a_taken_port_fails_at_once(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()
    settings = msgspec.structs.replace(SETTINGS, listen=front.address)
    second = Server(settings, TIMING, Links(engine.submits, engine.statuses, engine.texts))
    with caplog.at_level(logging.CRITICAL), pytest.raises(RuntimeError, match=front.address):
        await second.start()


async def test_a_tokenizer_of_another_model_is_refused(tokenizer: Tokenizer) -> None:
    small = msgspec.structs.replace(CARD, vocab_size=100)
    async with running(tokenizer, is_ready=False) as front:
        front.engine.ready(msgspec.structs.replace(READY, card=small))
        with pytest.raises(VocabularyMismatch, match=r"100 token ids.*49152"):
            await asyncio.wait_for(front.serving, 5)


async def test_more_calls_than_may_be_open_are_refused(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, msgspec.structs.replace(SETTINGS, max_open_calls=2)) as front:
        calls = [front.generate(), front.generate()]
        submits = [await front.engine.submit() for _ in calls]
        error = await error_of(front.generate())
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS")
        assert error.retry_s == 1.0, "nothing was measured yet"
        front.engine.tell(Load(num_waiting=0, num_running=2, num_free_blocks=3, num_blocks=7, drain_rate=0.5))
        await eventually(lambda: front.server.gateway.engine.loads.last is not None)
        assert (await error_of(front.generate())).retry_s == 2.0, "at the rate that was measured"
        for submit in submits:
            front.engine.end(submit)
        await asyncio.gather(*calls)
        again = front.generate()
        front.engine.end(await front.engine.submit())
        await again


async def test_a_burst_far_beyond_the_bound_is_refused_call_by_call(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, msgspec.structs.replace(SETTINGS, max_open_calls=10)) as front:
        calls = [asyncio.ensure_future(error_of(front.generate())) for _ in range(1500)]
        submits = [await front.engine.submit() for _ in range(10)]
        for submit in submits:
            front.engine.fail(submit, FailureReason.STEP_FAILED)
        # Room was made while the burst went on, so a few more may have been taken.
        while not all(call.done() for call in calls):
            for late in front.engine.drain():
                if isinstance(late, Submit):
                    front.engine.fail(late, FailureReason.STEP_FAILED)
            await asyncio.sleep(0.01)
        assert {call.result().reason for call in calls} == {"TOO_MANY_CALLS", "STEP_FAILED"}


async def test_more_texts_than_may_wait_for_the_tokenizer_are_refused(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, msgspec.structs.replace(SETTINGS, max_tokenizing=0)) as front:
        error = await error_of(front.generate(text="word " * 1000))
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS")


async def test_an_executor_that_comes_back_is_described_anew(tokenizer: Tokenizer) -> None:
    async with running(tokenizer) as front:
        front.engine.tell(msgspec.structs.replace(READY, num_blocks=7))
        front.engine.tell(Load(num_waiting=1, num_running=2, num_free_blocks=3, num_blocks=7, drain_rate=0.5))
        await eventually(lambda: front.server.gateway.engine.load is not None)
        got = await front.unary("ModelService/GetModel", models.GetModelRequest(), models.GetModelResponse)
        assert got.model.num_blocks == 7
