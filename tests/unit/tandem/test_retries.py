"""When a call is tried again: by the rules alone, and against servers that refuse a number of times."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from gateway.errors import CallError, status
from services.tokenizer import Tokenizer
from services.wire.messages import Draining
from tandem import AsyncClient, Client, Retries, TandemError, errors
from tandem.client import Stream
from tandem.errors import Details
from tandem.requests import STREAM_GENERATE
from tandem.retries import NO_RETRIES, Attempts
from tandem.v1 import errors_pb2 as reasons
from tandem.v1 import inference_pb2 as pb
from tests.unit.gateway.rig import Front, eventually, running

pytestmark = pytest.mark.asyncio(loop_scope="session")

RETRIES = Retries(max_attempts=4, first_wait_s=0.5, max_wait_s=8.0, jitter=0.5)
FULL = CallError(reasons.ERROR_REASON_QUEUE_FULL, "full", retry_after_s=0.1)
QUICK = Retries(first_wait_s=0.01)


def failure(kind: type[TandemError], retry_after_s: float | None = None) -> TandemError:
    return kind(Details("no", grpc.StatusCode.UNAVAILABLE, retry_after_s=retry_after_s))


@pytest.mark.parametrize(
    ("error", "attempt", "wait"),
    [
        (failure(errors.QueueFull, 2.0), 1, 2.0),
        (failure(errors.QueueFull, 2.0), 3, 2.0),
        (failure(errors.QueueFull, 2.0), 4, None),
        (failure(errors.QueueFull, 8.5), 1, None),
        (failure(errors.RateLimited, 0.0), 1, 0.0),
        (failure(errors.ConnectionFailed), 1, 0.5),
        (failure(errors.EngineDead), 2, 1.0),
        (failure(errors.ConnectionFailed), 3, 2.0),
        (failure(errors.KvCapacity), 1, None),
        (failure(errors.InvalidRequest), 1, None),
        (failure(errors.DeadlineExceeded), 1, None),
        (failure(errors.ServerError), 1, None),
        (failure(errors.DuplicateRequestId), 1, None),
        (failure(errors.Cancelled), 1, None),
    ],
)
async def test_who_waits_and_how_long(error: TandemError, attempt: int, wait: float | None) -> None:
    assert RETRIES.wait_s(error, attempt, chance=0.0) == wait
    late = RETRIES.wait_s(error, attempt, chance=0.999)
    assert late == wait if not wait else wait < (late or 0) <= wait * 1.5


async def test_no_wait_outlasts_the_deadline_and_attempts_share_it() -> None:
    now = [100.0]
    attempts = Attempts(RETRIES, 5.0, clock=lambda: now[0], chance=lambda: 0.0)
    assert attempts.remaining_s == 5.0
    assert attempts.wait_s(failure(errors.QueueFull, 2.0)) == 2.0
    now[0] = 103.5
    assert attempts.remaining_s == 1.5
    assert attempts.wait_s(failure(errors.QueueFull, 1.5)) is None
    assert attempts.wait_s(failure(errors.QueueFull, 1.0)) == 1.0
    now[0] = 999.0
    assert attempts.remaining_s == 0.0


async def test_waits_without_a_word_stay_below_their_bound() -> None:
    patient = Retries(max_attempts=50, max_wait_s=8.0)
    assert patient.wait_s(failure(errors.ConnectionFailed), 40, chance=0.0) == 8.0
    assert NO_RETRIES.wait_s(failure(errors.ConnectionFailed), 1, chance=0.0) is None


@dataclass
class Refusing:
    """A server that ends each call as it is told, one after the other, and then answers well."""

    ends: list[CallError | None] = field(default_factory=list)
    address: str = ""
    num_calls: int = 0
    arrivals: list[float] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)
    hangs: bool = False  # instead of answering well

    async def generate(self, request: bytes, context: Any) -> pb.GenerateResponse:
        await self._refuse(context)
        return pb.GenerateResponse(completions=[pb.Completion(text="well")])

    async def stream(self, request: bytes, context: Any) -> None:
        if self.ends and self.ends[0] is None:
            # A word, and then the end.
            self.ends.pop(0)
            await context.write(pb.GenerateChunk(text="a "))
        await self._refuse(context)
        await context.write(pb.GenerateChunk(text="well"))

    async def _refuse(self, context: Any) -> None:
        self.num_calls += 1
        self.arrivals.append(asyncio.get_running_loop().time())
        self.deadlines.append(context.time_remaining() or 0.0)
        error = self.ends.pop(0) if self.ends else None
        if error is not None:
            await context.abort_with_status(status(error))
        if self.hangs:
            await asyncio.sleep(3600)


@asynccontextmanager
async def refusing(*ends: CallError | None) -> AsyncIterator[Refusing]:
    refuses = Refusing(list(ends))
    server = grpc.aio.server()
    handlers: dict[str, Any] = {
        "Generate": grpc.unary_unary_rpc_method_handler(
            refuses.generate, response_serializer=pb.GenerateResponse.SerializeToString
        ),
        "StreamGenerate": grpc.unary_stream_rpc_method_handler(
            refuses.stream, response_serializer=pb.GenerateChunk.SerializeToString
        ),
    }
    service = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    refuses.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield refuses
    await server.stop(None)


Ask = Callable[[str, Retries, float | None], Awaitable[str]]


async def sync_unary(address: str, retries: Retries, timeout_s: float | None) -> str:
    def run() -> str:
        with Client(address, retries=retries) as client:
            return client.generate("x", timeout_s=timeout_s).text

    return await asyncio.to_thread(run)


async def sync_stream(address: str, retries: Retries, timeout_s: float | None) -> str:
    def run() -> str:
        with Client(address, retries=retries) as client, client.stream_generate("x", timeout_s=timeout_s) as stream:
            return "".join(chunk.text for chunk in stream)

    return await asyncio.to_thread(run)


async def async_unary(address: str, retries: Retries, timeout_s: float | None) -> str:
    async with AsyncClient(address, retries=retries) as client:
        return (await client.generate("x", timeout_s=timeout_s)).text


async def async_stream(address: str, retries: Retries, timeout_s: float | None) -> str:
    async with (
        AsyncClient(address, retries=retries) as client,
        client.stream_generate("x", timeout_s=timeout_s) as stream,
    ):
        return "".join([chunk.text async for chunk in stream])


WAYS: Sequence[Ask] = (sync_unary, sync_stream, async_unary, async_stream)
STREAMS: Sequence[Ask] = (sync_stream, async_stream)


@pytest.mark.parametrize("ask", WAYS)
async def test_a_refused_call_comes_back_when_it_was_told_to(ask: Ask) -> None:
    async with refusing(FULL, FULL) as server:
        assert await ask(server.address, Retries(), 9.0) == "well"
        assert server.num_calls == 3
        first, second, third = server.arrivals
        assert second - first >= 0.1 and third - second >= 0.1


@pytest.mark.parametrize("ask", WAYS)
async def test_the_timeout_is_that_of_all_attempts_together(ask: Ask) -> None:
    async with refusing(FULL) as server:
        server.hangs = True
        with pytest.raises(errors.DeadlineExceeded):
            await ask(server.address, Retries(), 0.9)
        # Below a second gRPC sends the deadline as it is. A machine that is too slow for two attempts shows one.
        assert server.deadlines == sorted(server.deadlines, reverse=True)


@pytest.mark.parametrize("ask", WAYS)
async def test_attempts_are_bounded(ask: Ask) -> None:
    async with refusing(*[FULL] * 9) as server:
        with pytest.raises(errors.QueueFull):
            await ask(server.address, Retries(max_attempts=3), None)
        assert server.num_calls == 3


@pytest.mark.parametrize("ask", WAYS)
async def test_a_wait_beyond_the_timeout_is_not_begun(ask: Ask) -> None:
    late = CallError(reasons.ERROR_REASON_QUEUE_FULL, "full", retry_after_s=20.0)
    async with refusing(late) as server:
        with pytest.raises(errors.QueueFull):
            await asyncio.wait_for(ask(server.address, Retries(), 10.0), 5)
        assert server.num_calls == 1


@pytest.mark.parametrize("ask", WAYS)
async def test_what_must_change_is_not_tried_again(ask: Ask) -> None:
    async with refusing(CallError(reasons.ERROR_REASON_INVALID_FIELD, "wrong")) as server:
        with pytest.raises(errors.InvalidRequest):
            await ask(server.address, QUICK, None)
        assert server.num_calls == 1


@pytest.mark.parametrize("ask", STREAMS)
async def test_a_stream_that_has_begun_is_never_asked_for_again(ask: Ask) -> None:
    async with refusing(None, FULL) as server:
        with pytest.raises(errors.QueueFull):
            await ask(server.address, QUICK, None)
        assert server.num_calls == 1


async def test_a_stream_that_is_closed_while_it_waits_is_over_at_once() -> None:
    late = CallError(reasons.ERROR_REASON_QUEUE_FULL, "full", retry_after_s=20.0)
    async with refusing(late, late) as server, AsyncClient(server.address) as client:
        stream = client.stream_generate("x")
        reading = asyncio.create_task(anext(stream))
        await eventually(lambda: server.num_calls == 1)
        await asyncio.sleep(0.05)
        stream.close()
        with pytest.raises(errors.Cancelled):
            await asyncio.wait_for(reading, 5)

        def read_and_close() -> None:
            with Client(server.address) as sync, sync.stream_generate("x") as waiting:
                closing.append(waiting)
                next(waiting)

        closing: list[Any] = []
        thread = asyncio.create_task(asyncio.to_thread(read_and_close))
        await eventually(lambda: server.num_calls == 2 and bool(closing))
        await asyncio.sleep(0.05)
        closing[0].close()
        with pytest.raises(errors.Cancelled):
            await asyncio.wait_for(thread, 5)
        assert server.num_calls == 2


async def test_a_stream_that_is_closed_while_it_asks_again_is_cancelled() -> None:
    asked: list[str] = []

    class Refused:
        """A call that fails at once, and is closed by another thread while the next one is opened."""

        def __next__(self) -> pb.GenerateChunk:
            raise RefusedError

        def cancel(self) -> None:
            asked.append("cancel")

    class RefusedError(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.CANCELLED if "cancel" in asked else grpc.StatusCode.UNAVAILABLE

        def details(self) -> str:
            return "no"

        def trailing_metadata(self) -> tuple[()]:
            return ()

    def open_call(_remaining_s: float | None) -> Refused:
        asked.append("open")
        if asked == ["open", "open"]:
            stream.close()
        return Refused()

    stream = Stream(open_call, STREAM_GENERATE, Attempts(QUICK, None))
    with pytest.raises(TandemError):
        next(stream)
    assert asked == ["open", "open", "cancel", "cancel"], "the old call, and the new one"


async def test_a_server_that_was_not_there_yet_is_found() -> None:
    async with refusing() as first:
        address = first.address
    async with AsyncClient(address, retries=Retries(max_attempts=20, first_wait_s=0.05, max_wait_s=0.2)) as client:
        call = asyncio.create_task(client.generate("x", timeout_s=20))
        await asyncio.sleep(0.1)
        server = grpc.aio.server()
        answers = Refusing()
        handler: Any = grpc.unary_unary_rpc_method_handler(
            answers.generate, response_serializer=pb.GenerateResponse.SerializeToString
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("tandem.v1.InferenceService", {"Generate": handler}),)
        )
        server.add_insecure_port(address)
        await server.start()
        assert (await call).text == "well"
        await server.stop(None)


def both(one: Front, two: Front) -> AsyncClient:
    return AsyncClient(f"{one.address},{two.address}", retries=QUICK)


async def test_calls_go_round_healthy_servers_and_pass_by_the_others(tokenizer: Tokenizer) -> None:
    async with running(tokenizer) as one, running(tokenizer) as two, both(one, two) as client:

        async def served_by() -> list[int]:
            tasks = [asyncio.create_task(client.generate("x", timeout_s=10)) for _ in range(4)]
            fronts = (one, two)
            await eventually(lambda: sum(len(front.server.gateway.calls) for front in fronts) == 4)
            counts = [len(front.server.gateway.calls) for front in fronts]
            for front, count in zip(fronts, counts, strict=True):
                for _ in range(count):
                    front.engine.end(await front.engine.submit())
            await asyncio.gather(*tasks)
            return counts

        await client.model(timeout_s=10)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                while await served_by() != [2, 2]:
                    pass
        assert await served_by() == [2, 2]
        two.engine.tell(Draining())
        async with asyncio.timeout(5):
            while await served_by() != [4, 0]:
                pass
        assert await served_by() == [4, 0]
