"""AsyncClient: Tandem from an event loop. Its twin is client.py; what they share stands in requests, results, errors.

An AsyncClient belongs to the loop that made it. A stream must be read to its end or closed; a closed or forgotten one
is cancelled, and then the server stops working for it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message

from tandem import errors, requests
from tandem.client import ANY_MODEL, POLL_S
from tandem.connection import DEFAULT_ADDRESS, Tls, connection
from tandem.options import ChatOptions, MessageSpec, Options
from tandem.requests import Method
from tandem.results import Chunk, Generation, Model
from tandem.retries import DEFAULT_RETRIES, Attempts, Retries
from tandem.v1 import models_pb2

Reply = TypeVar("Reply", bound=Message)
Result = TypeVar("Result")
OpenCall = Callable[[float | None], "grpc.aio.UnaryStreamCall[Message, Reply]"]


class AsyncStream(Generic[Result]):
    """The results of a streaming call, one by one. Raises TandemError where the call fails.

    Until its first result has come it is asked for again where that may help.
    """

    def __init__(self, open_call: "OpenCall[Reply]", method: Method[Reply, Result], attempts: Attempts) -> None:
        self._open: OpenCall[Any] = open_call
        self._read: Callable[[Any], Result] = method.read
        self._attempts = attempts
        self._has_begun = False
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self._call: grpc.aio.UnaryStreamCall[Message, Any] = open_call(attempts.remaining_s)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Result:
        while True:
            try:
                reply = await self._call.read()
            except grpc.RpcError as error:
                failure = errors.from_rpc(error)
                wait = None if self._has_begun or self._closed.is_set() else self._attempts.wait_s(failure)
                if wait is None:
                    raise failure from error
                await self._pause(wait)
                self._call = self._open(self._attempts.remaining_s)
            except asyncio.CancelledError:
                # gRPC says it in the same words whether the call was cancelled or the task that reads.
                if self._closed.is_set():
                    raise errors.closed() from None
                raise
            else:
                if reply is grpc.aio.EOF:
                    raise StopAsyncIteration
                self._has_begun = True
                return self._read(reply)

    async def _pause(self, wait_s: float) -> None:
        """Wait, unless the stream is closed meanwhile."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), wait_s)
            raise errors.closed()

    def close(self) -> None:
        """Stop the call, if it has not ended. Idempotent."""
        self._closed.set()
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # gRPC itself never ends a call that nobody holds any more.
        if not self._loop.is_closed():
            self.close()


class AsyncClient:
    """Calls to one Tandem server, or several. tls: None = a plain connection; token: TANDEM_TOKEN by default.

    address: host:port, unix:path, several IP:port with commas between, or dns:///host:port of a name that has several.
    timeout_s of every call: seconds, all its attempts together; None waits for ever.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        tls: Tls | grpc.ChannelCredentials | None = None,
        token: str | None = None,
        retries: Retries = DEFAULT_RETRIES,
    ) -> None:
        way = connection(address, tls, token)
        self._metadata = way.metadata
        self._retries = retries
        self._channel = (
            grpc.aio.insecure_channel(way.address, options=way.options)
            if way.credentials is None
            else grpc.aio.secure_channel(way.address, way.credentials, options=way.options)
        )

    async def generate(
        self, prompt: str | Sequence[int], *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Generation:
        """Complete a text, or token ids."""
        return await self._unary(requests.GENERATE, requests.generate_request(prompt, options), timeout_s)

    def stream_generate(
        self, prompt: str | Sequence[int], *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> AsyncStream[Chunk]:
        """Complete a text, or token ids, piece by piece."""
        return self._stream(requests.STREAM_GENERATE, requests.generate_request(prompt, options), timeout_s)

    async def chat(
        self, messages: Sequence[MessageSpec], *, timeout_s: float | None = None, **options: Unpack[ChatOptions]
    ) -> Generation:
        """Answer a conversation: mappings with "role" (system, user, assistant, tool) and "content"."""
        return await self._unary(requests.CHAT, requests.chat_request(messages, options), timeout_s)

    def stream_chat(
        self, messages: Sequence[MessageSpec], *, timeout_s: float | None = None, **options: Unpack[ChatOptions]
    ) -> AsyncStream[Chunk]:
        """Answer a conversation piece by piece."""
        return self._stream(requests.STREAM_CHAT, requests.chat_request(messages, options), timeout_s)

    async def tokenize(
        self, text: str, *, parse_special: bool | None = None, timeout_s: float | None = None
    ) -> list[int]:
        """The token ids of a text."""
        return await self._unary(requests.TOKENIZE, requests.tokenize_request(text, parse_special, None), timeout_s)

    async def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool | None = None, timeout_s: float | None = None
    ) -> str:
        """The text of token ids."""
        request = requests.detokenize_request(token_ids, skip_special_tokens, None)
        return await self._unary(requests.DETOKENIZE, request, timeout_s)

    async def models(self, *, timeout_s: float | None = None) -> list[Model]:
        """Every model that is served."""
        return await self._unary(requests.LIST_MODELS, models_pb2.ListModelsRequest(), timeout_s)

    async def model(self, name: str | None = None, *, timeout_s: float | None = None) -> Model:
        """One model, by name, or the one that is served."""
        return await self._unary(requests.GET_MODEL, models_pb2.GetModelRequest(name=name), timeout_s)

    async def wait_until_ready(self, timeout_s: float) -> Model:
        """Wait for a server that starts; raises the last Unavailable when it takes longer than timeout_s."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                return await self._once(requests.GET_MODEL, ANY_MODEL, max(deadline - loop.time(), POLL_S))
            except errors.Unavailable:
                if loop.time() + POLL_S > deadline:
                    raise
                await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Close the channel and cancel what is open on it. Idempotent."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _unary(self, method: Method[Reply, Result], request: Message, timeout_s: float | None) -> Result:
        attempts = Attempts(self._retries, timeout_s)
        while True:
            try:
                return await self._once(method, request, attempts.remaining_s)
            except errors.TandemError as error:
                wait = attempts.wait_s(error)
                if wait is None:
                    raise
            await asyncio.sleep(wait)

    async def _once(self, method: Method[Reply, Result], request: Message, timeout_s: float | None) -> Result:
        call = self._channel.unary_unary(method.path, type(request).SerializeToString, method.reply.FromString)
        try:
            return method.read(await call(request, timeout=timeout_s, metadata=self._metadata))
        except grpc.RpcError as error:
            raise errors.from_rpc(error) from error

    def _stream(self, method: Method[Reply, Result], request: Message, timeout_s: float | None) -> AsyncStream[Result]:
        call = self._channel.unary_stream(method.path, type(request).SerializeToString, method.reply.FromString)

        def open_call(remaining_s: float | None) -> "grpc.aio.UnaryStreamCall[Message, Reply]":
            return call(request, timeout=remaining_s, metadata=self._metadata)

        return AsyncStream(open_call, method, Attempts(self._retries, timeout_s))
