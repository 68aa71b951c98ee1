"""AsyncClient: Tandem from an event loop. Its twin is client.py; what they share stands in requests, results, errors.

An AsyncClient belongs to the loop that made it. A stream must be read to its end or closed; a closed or forgotten one
is cancelled, and then the server stops working for it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message

from tandem import errors, requests
from tandem.client import POLL_S
from tandem.connection import DEFAULT_ADDRESS, Tls, connection
from tandem.requests import Method, Options
from tandem.results import Chunk, Generation, Model
from tandem.v1 import models_pb2

Reply = TypeVar("Reply", bound=Message)
Result = TypeVar("Result")


class AsyncStream(Generic[Result]):
    """The results of a streaming call, one by one. Raises TandemError where the call fails."""

    def __init__(self, call: "grpc.aio.UnaryStreamCall[Message, Reply]", method: Method[Reply, Result]) -> None:
        self._call = call
        self._read: Callable[[Any], Result] = method.read
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Result:
        try:
            reply = await self._call.read()
        except grpc.RpcError as error:
            raise errors.from_rpc(error) from error
        except asyncio.CancelledError:
            # gRPC says it in the same words whether the call was cancelled or the task that reads.
            if self._is_closed:
                raise errors.closed() from None
            raise
        if reply is grpc.aio.EOF:
            raise StopAsyncIteration
        return self._read(reply)

    def close(self) -> None:
        """Stop the call, if it has not ended. Idempotent."""
        self._is_closed = True
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
    """Calls to one Tandem server. tls: None = a plain connection; token: TANDEM_TOKEN by default.

    timeout_s of every call: seconds; None waits for ever.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        tls: Tls | grpc.ChannelCredentials | None = None,
        token: str | None = None,
    ) -> None:
        way = connection(address, tls, token)
        self._metadata = way.metadata
        self._channel = (
            grpc.aio.insecure_channel(address, options=way.options)
            if way.credentials is None
            else grpc.aio.secure_channel(address, way.credentials, options=way.options)
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
        self, messages: Sequence[Mapping[str, str]], *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Generation:
        """Answer a conversation: mappings with "role" (system, user, assistant) and "content"."""
        return await self._unary(requests.CHAT, requests.chat_request(messages, options), timeout_s)

    def stream_chat(
        self, messages: Sequence[Mapping[str, str]], *, timeout_s: float | None = None, **options: Unpack[Options]
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
                return await self.model(timeout_s=max(deadline - loop.time(), POLL_S))
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
        call = self._channel.unary_unary(method.path, type(request).SerializeToString, method.reply.FromString)
        try:
            return method.read(await call(request, timeout=timeout_s, metadata=self._metadata))
        except grpc.RpcError as error:
            raise errors.from_rpc(error) from error

    def _stream(self, method: Method[Reply, Result], request: Message, timeout_s: float | None) -> AsyncStream[Result]:
        call = self._channel.unary_stream(method.path, type(request).SerializeToString, method.reply.FromString)
        return AsyncStream(call(request, timeout=timeout_s, metadata=self._metadata), method)
