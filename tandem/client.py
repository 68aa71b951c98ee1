"""Client: Tandem from synchronous code. Its twin is aio.py; what they share stands in requests, results and errors.

A Client owns one channel, which threads may share. A stream is an iterator that must be read to its end or closed; a
closed or forgotten one is cancelled, and then the server stops working for it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack

import grpc
from google.protobuf.message import Message

from tandem import errors, requests
from tandem.connection import DEFAULT_ADDRESS, Tls, connection
from tandem.options import ChatOptions, MessageSpec, Options
from tandem.requests import Method
from tandem.results import Chunk, Generation, Model
from tandem.retries import DEFAULT_RETRIES, Attempts, Retries
from tandem.v1 import models_pb2

Reply = TypeVar("Reply", bound=Message)
ReplyOut = TypeVar("ReplyOut", bound=Message, covariant=True)
Result = TypeVar("Result")

# How often a server that is not ready yet is asked again, and what.
POLL_S = 0.1
ANY_MODEL = models_pb2.GetModelRequest()


class _Call(Protocol[ReplyOut]):
    """What a streaming call of gRPC's is, as far as it is used here."""

    def __next__(self) -> ReplyOut: ...

    def cancel(self) -> object: ...


class Stream(Generic[Result]):
    """The results of a streaming call, one by one. Raises TandemError where the call fails.

    Until its first result has come it is asked for again where that may help.
    """

    def __init__(
        self, open_call: "Callable[[float | None], _Call[Reply]]", method: Method[Reply, Result], attempts: Attempts
    ) -> None:
        self._open: Callable[[float | None], _Call[Any]] = open_call
        self._read: Callable[[Any], Result] = method.read
        self._attempts = attempts
        self._has_begun = False
        self._closed = threading.Event()
        self._call = open_call(attempts.remaining_s)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Result:
        while True:
            try:
                reply = next(self._call)
            except grpc.RpcError as error:
                failure = errors.from_rpc(error)
                wait = None if self._has_begun or self._closed.is_set() else self._attempts.wait_s(failure)
                if wait is None:
                    raise failure from error
                if self._closed.wait(wait):
                    raise errors.closed() from error
                self._call = self._open(self._attempts.remaining_s)
                if self._closed.is_set():  # by another thread, which found the call before this one
                    self._call.cancel()
            else:
                self._has_begun = True
                return self._read(reply)

    def close(self) -> None:
        """Stop the call, if it has not ended. Idempotent."""
        self._closed.set()
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # gRPC itself never ends a call that nobody holds any more.
        self.close()


class Client:
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
            grpc.insecure_channel(way.address, options=way.options)
            if way.credentials is None
            else grpc.secure_channel(way.address, way.credentials, options=way.options)
        )

    def generate(
        self, prompt: str | Sequence[int], *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Generation:
        """Complete a text, or token ids."""
        return self._unary(requests.GENERATE, requests.generate_request(prompt, options), timeout_s)

    def stream_generate(
        self, prompt: str | Sequence[int], *, timeout_s: float | None = None, **options: Unpack[Options]
    ) -> Stream[Chunk]:
        """Complete a text, or token ids, piece by piece."""
        return self._stream(requests.STREAM_GENERATE, requests.generate_request(prompt, options), timeout_s)

    def chat(
        self, messages: Sequence[MessageSpec], *, timeout_s: float | None = None, **options: Unpack[ChatOptions]
    ) -> Generation:
        """Answer a conversation: mappings with "role" (system, user, assistant, tool) and "content"."""
        return self._unary(requests.CHAT, requests.chat_request(messages, options), timeout_s)

    def stream_chat(
        self, messages: Sequence[MessageSpec], *, timeout_s: float | None = None, **options: Unpack[ChatOptions]
    ) -> Stream[Chunk]:
        """Answer a conversation piece by piece."""
        return self._stream(requests.STREAM_CHAT, requests.chat_request(messages, options), timeout_s)

    def tokenize(self, text: str, *, parse_special: bool | None = None, timeout_s: float | None = None) -> list[int]:
        """The token ids of a text."""
        return self._unary(requests.TOKENIZE, requests.tokenize_request(text, parse_special, None), timeout_s)

    def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool | None = None, timeout_s: float | None = None
    ) -> str:
        """The text of token ids."""
        request = requests.detokenize_request(token_ids, skip_special_tokens, None)
        return self._unary(requests.DETOKENIZE, request, timeout_s)

    def models(self, *, timeout_s: float | None = None) -> list[Model]:
        """Every model that is served."""
        return self._unary(requests.LIST_MODELS, models_pb2.ListModelsRequest(), timeout_s)

    def model(self, name: str | None = None, *, timeout_s: float | None = None) -> Model:
        """One model, by name, or the one that is served."""
        return self._unary(requests.GET_MODEL, models_pb2.GetModelRequest(name=name), timeout_s)

    def wait_until_ready(self, timeout_s: float) -> Model:
        """Wait for a server that starts; raises the last Unavailable when it takes longer than timeout_s."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self._once(requests.GET_MODEL, ANY_MODEL, max(deadline - time.monotonic(), POLL_S))
            except errors.Unavailable:
                if time.monotonic() + POLL_S > deadline:
                    raise
                time.sleep(POLL_S)

    def close(self) -> None:
        """Close the channel and cancel what is open on it. Idempotent."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _unary(self, method: Method[Reply, Result], request: Message, timeout_s: float | None) -> Result:
        attempts = Attempts(self._retries, timeout_s)
        while True:
            try:
                return self._once(method, request, attempts.remaining_s)
            except errors.TandemError as error:
                wait = attempts.wait_s(error)
                if wait is None:
                    raise
            time.sleep(wait)

    def _once(self, method: Method[Reply, Result], request: Message, timeout_s: float | None) -> Result:
        call = self._channel.unary_unary(method.path, type(request).SerializeToString, method.reply.FromString)
        try:
            return method.read(call(request, timeout=timeout_s, metadata=self._metadata))
        except grpc.RpcError as error:
            raise errors.from_rpc(error) from error

    def _stream(self, method: Method[Reply, Result], request: Message, timeout_s: float | None) -> Stream[Result]:
        call = self._channel.unary_stream(method.path, type(request).SerializeToString, method.reply.FromString)

        def open_call(remaining_s: float | None) -> "_Call[Reply]":
            opened: _Call[Reply] = call(request, timeout=remaining_s, metadata=self._metadata)
            return opened

        return Stream(open_call, method, Attempts(self._retries, timeout_s))
