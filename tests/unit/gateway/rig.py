"""A gateway over memory links, and the engine's side of them, driven by hand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import grpc
import msgspec
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from gateway.engine import Phase
from gateway.server import Ending, Links, Server
from services.runtime.settings import GatewaySettings, LinkSettings
from services.tokenizer import Tokenizer
from services.wire import columns
from services.wire.memory import MemoryAsyncInlet, memory_link
from services.wire.messages import (
    Cancel,
    Control,
    EngineReady,
    FailureReason,
    FinishReason,
    Identity,
    ModelCard,
    StatusMessage,
    Submit,
    SubmitMessage,
    TextBatch,
    TextDelta,
    TextEnd,
    Timings,
    TokenLogprobs,
)
from services.wire.topology import STATUS, SUBMIT, TEXT
from tandem.v1 import inference_pb2 as pb

CARD = ModelCard(
    name="smol",
    vocab_size=49152,
    context_length=512,
    eos_token_ids=(2,),
    backend="fake",
    dtype="float32",
    num_parameters=7,
    kv_bytes_per_token=11,
)
READY = EngineReady(card=CARD, num_blocks=63, block_size=16, max_num_seqs=8)
SETTINGS = GatewaySettings(listen="127.0.0.1:0", drain_s=0.5, max_n=4, max_prompt_bytes=64 * 1024)
# The scripted engine shows no life while tests of other kinds run, however long that is.
TIMING = LinkSettings(heartbeat_s=1.0, death_s=3600.0)

M = TypeVar("M", Submit, Cancel, Control)
R = TypeVar("R", bound=Message)


class FakeEngine:
    """What a scheduler and a detokenizer would say, word by word."""

    def __init__(self, high_water_mark: int = 4096) -> None:
        self.submits, submit_inlet = memory_link(SUBMIT, high_water_mark)
        self._statuses, status_inlet = memory_link(STATUS, high_water_mark)
        self._texts, self._text_inlet = memory_link(TEXT, high_water_mark)
        self._inbox = MemoryAsyncInlet(submit_inlet)
        self.statuses = MemoryAsyncInlet(status_inlet)
        self.texts = MemoryAsyncInlet(self._text_inlet)
        self._seen: list[SubmitMessage] = []
        self._number = 0
        self.submit_inlet = submit_inlet

    def ready(self, ready: EngineReady = READY) -> None:
        self.tell(ready)
        self.show_text_side()

    def show_scheduler(self) -> None:
        """A heartbeat of the scheduler."""
        self._statuses.heartbeat()

    def show_text_side(self) -> None:
        """A heartbeat of the detokenizer."""
        self._texts.heartbeat()

    def break_text_link(self) -> None:
        """A frame that no sender of ours would send."""
        self._text_inlet.put(self._texts, b"junk")

    def tell(self, message: StatusMessage) -> None:
        self._statuses.send(message)

    async def submit(self) -> Submit:
        """The next Submit."""
        return await self._next(Submit)

    async def cancel(self) -> Cancel:
        """The next Cancel."""
        return await self._next(Cancel)

    async def order(self) -> Control:
        """The next Control."""
        return await self._next(Control)

    def drain(self) -> list[SubmitMessage]:
        """Everything that has come and was not asked for."""
        seen, self._seen = [*self._seen, *self.submit_inlet.receive()], []
        return seen

    def say(
        self, call: Submit, text: str, tokens: Sequence[int], index: int = 0, logprobs: Sequence[TokenLogprobs] = ()
    ) -> None:
        """New text of one sequence."""
        identity = call.identity
        delta = TextDelta(
            identity.request, identity.incarnation, index, text, columns.pack(tokens), logprobs=tuple(logprobs)
        )
        self.batch(deltas=(delta,))

    def end(self, call: Submit, reason: FinishReason = FinishReason.STOP, **fields: object) -> None:
        """The end of one sequence."""
        self.batch(ends=(text_end(call.identity, reason, **fields),))

    def fail(self, call: Submit, failure: FailureReason, **fields: object) -> None:
        self.end(call, FinishReason.FAILED, failure=failure, **fields)

    def batch(self, deltas: tuple[TextDelta, ...] = (), ends: tuple[TextEnd, ...] = ()) -> None:
        self._number += 1
        self._texts.send(TextBatch(self._number, deltas, ends))

    async def _next(self, kind: type[M]) -> M:
        async with asyncio.timeout(60):
            while True:
                for message in self._seen:
                    if isinstance(message, kind):
                        self._seen.remove(message)
                        return message
                self._seen += await self._inbox.receive()


def text_end(identity: Identity, reason: FinishReason, **fields: object) -> TextEnd:
    """An end with defaults for whatever a test does not care for."""
    end = TextEnd(
        identity.request,
        identity.incarnation,
        index=0,
        reason=reason,
        failure=FailureReason.NONE,
        detail="",
        num_prompt_tokens=3,
        num_output_tokens=2,
        num_cached_tokens=1,
        timings=Timings(queue_us=1000, prefill_us=2000, decode_us=3000),
    )
    return msgspec.structs.replace(end, **fields)


@dataclass
class Front:
    """A running gateway, its engine, and a channel to it."""

    server: Server
    engine: FakeEngine
    address: str
    channel: grpc.aio.Channel
    serving: asyncio.Task[None]

    async def settle(self) -> None:
        """Wait until no call is open, and forget what the engine was sent."""
        await eventually(lambda: len(self.server.gateway.calls) == 0)
        self.engine.drain()

    def unary(
        self, method: str, request: Message, reply: type[R], seconds: float = 60
    ) -> "grpc.aio.UnaryUnaryCall[Message, R]":
        """One unary call by its path, such as "InferenceService/Generate"; to be awaited."""
        return self.channel.unary_unary(
            f"/tandem.v1.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )(request, timeout=seconds)

    def stream(
        self, method: str, request: Message, reply: type[R], seconds: float = 60
    ) -> "grpc.aio.UnaryStreamCall[Message, R]":
        """One streaming call by its path."""
        return self.channel.unary_stream(
            f"/tandem.v1.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )(request, timeout=seconds)

    def generate(self, **fields: Any) -> "grpc.aio.UnaryUnaryCall[Message, pb.GenerateResponse]":
        """Generate, with a prompt unless one is given."""
        return self.unary("InferenceService/Generate", generate_request(fields), pb.GenerateResponse)

    def stream_generate(self, **fields: Any) -> "grpc.aio.UnaryStreamCall[Message, pb.GenerateChunk]":
        """StreamGenerate, with a prompt unless one is given."""
        return self.stream("InferenceService/StreamGenerate", generate_request(fields), pb.GenerateChunk)


def generate_request(fields: dict[str, Any]) -> pb.GenerateRequest:
    return pb.GenerateRequest(**{"text": "Hello world", **fields})


async def read(stream: "grpc.aio.UnaryStreamCall[Message, R]") -> R:
    """The next message of a stream, which must not be at its end."""
    message = await asyncio.wait_for(stream.read(), 60)
    assert message is not grpc.aio.EOF, "the stream has ended"
    return cast("R", message)


async def rest(stream: "grpc.aio.UnaryStreamCall[Message, R]") -> list[R]:
    """Every message of a stream up to its end."""
    messages = []
    while (message := await asyncio.wait_for(stream.read(), 60)) is not grpc.aio.EOF:
        messages.append(cast("R", message))
    return messages


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def error_of(call: Awaitable[object]) -> "Failure":
    """How a call fails, which it must."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return failure(caught.value)


@asynccontextmanager
async def running(
    tokenizer: Tokenizer,
    settings: GatewaySettings = SETTINGS,
    timing: LinkSettings = TIMING,
    is_ready: bool = True,
    high_water_mark: int = 4096,
) -> AsyncIterator[Front]:
    """A gateway on a port of its own, until the block is left."""
    engine = FakeEngine(high_water_mark)
    server = Server(settings, timing, Links(engine.submits, engine.statuses, engine.texts))
    address = await server.start()
    serving = asyncio.create_task(server.serve(lambda: tokenizer))
    if is_ready:
        engine.ready()
        await eventually(lambda: server.gateway.engine.phase is Phase.READY)
    async with grpc.aio.insecure_channel(address) as channel:
        yield Front(server, engine, address, channel, serving)
    server.stop(Ending.DRAIN)
    await asyncio.wait([serving])


@dataclass(frozen=True)
class Failure:
    """What a client sees of a call that failed."""

    code: grpc.StatusCode
    reason: str
    message: str
    fields: tuple[str, ...]
    retry_s: float | None
    metadata: dict[str, str]
    trailers: dict[str, str | bytes]
    quotas: tuple[str, ...] = ()


def failure(error: grpc.aio.AioRpcError) -> Failure:
    """Read the status and the details of an error."""
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    trailers = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers.pop("grpc-status-details-bin"))
    retry_s, quota = None, error_details_pb2.QuotaFailure()
    for packed in status.details:
        packed.Unpack(info)
        packed.Unpack(quota)
        packed.Unpack(bad)
        if packed.Unpack(retry):
            retry_s = retry.retry_delay.ToMilliseconds() / 1000
    assert info.domain == "tandem"
    assert (status.code, status.message) == (error.code().value[0], error.details())
    return Failure(
        code=error.code(),
        reason=info.reason,
        message=status.message,
        fields=tuple(violation.field for violation in bad.field_violations),
        retry_s=retry_s,
        metadata=dict(info.metadata),
        trailers=trailers,
        quotas=tuple(violation.subject for violation in quota.violations),
    )
