"""A client that goes, however it goes, ends the engine's work at once and leaves nothing behind."""

import asyncio
from collections.abc import Awaitable

import grpc
import msgspec
import pytest

from services.tokenizer import Tokenizer
from services.wire.messages import Submit
from tandem.v1 import common_pb2 as common
from tandem.v1 import inference_pb2 as pb
from tests.unit.gateway.rig import SETTINGS, TIMING, Front, error_of, eventually, read, running
from tests.unit.gateway.test_calls import LOGPROBS

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def cancelled_once(front: Front, submit: Submit) -> None:
    """The engine was told, and told once; the gateway has let go."""
    assert (await front.engine.cancel()).identity == submit.identity
    await eventually(lambda: len(front.server.gateway.calls) == 0)
    assert front.engine.drain() == []


async def test_cancel_while_waiting(front: Front) -> None:
    stream = front.stream_generate()
    submit = await front.engine.submit()
    stream.cancel()
    await cancelled_once(front, submit)


async def test_cancel_in_mid_stream(front: Front) -> None:
    stream = front.stream_generate()
    submit = await front.engine.submit()
    front.engine.say(submit, "a", [1])
    await read(stream)
    stream.cancel()
    await cancelled_once(front, submit)


async def test_cancel_of_a_unary_call(front: Front) -> None:
    call = front.generate()
    submit = await front.engine.submit()
    front.engine.say(submit, "a", [1])
    call.cancel()
    await cancelled_once(front, submit)


async def test_the_deadline_ends_the_work(front: Front) -> None:
    request = pb.GenerateRequest(text="x")
    call = front.unary("InferenceService/Generate", request, pb.GenerateResponse, seconds=0.2)
    submit = await front.engine.submit()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await cancelled_once(front, submit)


async def test_a_lost_socket_ends_every_call_on_it(front: Front) -> None:
    async with grpc.aio.insecure_channel(front.address) as channel:
        path = "/tandem.v1.InferenceService/StreamGenerate"
        call: grpc.aio.UnaryStreamMultiCallable[pb.GenerateRequest, bytes] = channel.unary_stream(
            path, pb.GenerateRequest.SerializeToString
        )
        streams = [call(pb.GenerateRequest(text="x")) for _ in range(3)]
        submits = [await front.engine.submit() for _ in streams]
    gone = {(await front.engine.cancel()).identity for _ in submits}
    assert gone == {submit.identity for submit in submits}
    await eventually(lambda: len(front.server.gateway.calls) == 0)


async def test_nothing_is_cancelled_that_has_ended(front: Front) -> None:
    stream = front.stream_generate(sampling=common.Sampling(n=2))
    submit = await front.engine.submit()
    front.engine.end(submit, index=0)
    front.engine.end(submit, index=1)
    await read(stream)
    stream.cancel()
    await eventually(lambda: len(front.server.gateway.calls) == 0)
    assert front.engine.drain() == []


async def test_an_id_may_be_used_again_right_after_its_cancel(front: Front) -> None:
    for _ in range(200):
        first = front.stream_generate(request_id="x")
        submit = await front.engine.submit()
        first.cancel()
        second = front.generate(request_id="x")
        again = await front.engine.submit()
        assert again.identity.incarnation > submit.identity.incarnation
        assert (await front.engine.cancel()).identity == submit.identity
        front.engine.say(again, "fresh", [1])
        front.engine.end(again)
        assert (await second).completions[0].text == "fresh"
    assert front.engine.drain() == []


async def test_two_hundred_cancels_at_once_leave_no_task_behind(front: Front) -> None:
    async def base() -> int:
        await asyncio.sleep(0.05)
        return len(asyncio.all_tasks())

    before = await base()
    streams = [front.stream_generate() for _ in range(200)]
    submits = [await front.engine.submit() for _ in streams]
    for stream in streams:
        stream.cancel()
    gone = [await front.engine.cancel() for _ in submits]
    assert {cancel.identity for cancel in gone} == {submit.identity for submit in submits}
    del streams, stream
    async with asyncio.timeout(5):
        while await base() > before:
            pass


async def test_a_cancel_that_the_link_does_not_take_is_sent_later(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, timing=msgspec.structs.replace(TIMING, heartbeat_s=60.0), high_water_mark=2) as front:
        # The one heartbeat takes a place on the link, too.
        await eventually(lambda: front.engine.drain() == [] and bool(front.engine.submit_inlet.last_heard()))
        streams = [front.stream_generate() for _ in range(2)]
        await eventually(lambda: len(front.server.gateway.calls) == 2)
        # Both submits fill the link; the engine has taken nothing yet.
        error = await error_of(front.generate())
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        assert error.retry_s is not None
        for stream in streams:
            stream.cancel()
        await eventually(lambda: len(front.server.gateway.calls) == 0)
        submits = [await front.engine.submit() for _ in streams]
        gone = {(await front.engine.cancel()).identity for _ in streams}
        assert gone == {submit.identity for submit in submits}


# A client that does not read ---------------------------------------------------------------------------------------


def slow_channel(front: Front) -> grpc.aio.Channel:
    """A channel that takes little ahead of its reader."""
    return grpc.aio.insecure_channel(
        front.address, (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536))
    )


async def stuck_stream(front: Front, channel: grpc.aio.Channel) -> tuple[Submit, Awaitable[object]]:
    """A stream whose client reads nothing, fed until a write is stuck."""
    request = pb.GenerateRequest(text="x", output=common.Output(logprobs=2))
    stream = channel.unary_stream(
        "/tandem.v1.InferenceService/StreamGenerate", pb.GenerateRequest.SerializeToString, pb.GenerateChunk.FromString
    )(request)
    submit = await front.engine.submit()
    (call,) = front.server.gateway.calls
    clock = front.server.gateway.clock
    async with asyncio.timeout(10):
        while call.writing_since is None or clock() - call.writing_since < 0.1:
            front.engine.say(submit, "word " * 20, [5] * 20, logprobs=[LOGPROBS] * 20)
            await asyncio.sleep(0.001)

    async def rest() -> None:
        async for _ in stream:
            pass

    return submit, rest()


async def test_a_reader_that_stalls_is_ended_and_told_when_it_reads_on(tokenizer: Tokenizer) -> None:
    settings = msgspec.structs.replace(SETTINGS, stall_s=0.3)
    timing = msgspec.structs.replace(TIMING, heartbeat_s=0.1)
    async with running(tokenizer, settings, timing) as front, slow_channel(front) as channel:
        submit, rest = await stuck_stream(front, channel)
        await cancelled_once(front, submit)
        # Whoever stands beside it is not disturbed.
        neighbour = front.generate()
        front.engine.end(await front.engine.submit())
        await neighbour
        error = await error_of(rest)
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER")
        assert int(error.trailers["x-tandem-completion-tokens"]) > 0


async def test_a_reader_that_leaves_too_much_unread_is_ended(tokenizer: Tokenizer) -> None:
    settings = msgspec.structs.replace(SETTINGS, stall_s=60, max_unread_tokens=100)
    async with running(tokenizer, settings) as front, slow_channel(front) as channel:
        submit, rest = await stuck_stream(front, channel)
        while len(front.server.gateway.calls):
            front.engine.say(submit, "x", [5] * 20)
            await asyncio.sleep(0.001)
        await cancelled_once(front, submit)
        error = await error_of(rest)
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER")


async def test_a_client_that_goes_during_a_stuck_write_is_let_go(tokenizer: Tokenizer) -> None:
    async with running(tokenizer) as front:
        async with slow_channel(front) as channel:
            submit, rest = await stuck_stream(front, channel)
            assert asyncio.iscoroutine(rest)
            rest.close()
        await cancelled_once(front, submit)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_handler_that_is_cancelled_from_inside_leaves_no_client_without_a_status(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    async with running(tokenizer) as front:

        def cancelled(*_: object) -> None:
            raise asyncio.CancelledError

        monkeypatch.setattr(front.server.gateway, "submit", cancelled)
        call = front.stream_generate().read() if is_stream else front.generate()
        error = await asyncio.wait_for(error_of(call), 5)
        assert (error.code, error.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
        await eventually(lambda: len(front.server.gateway.calls) == 0)
