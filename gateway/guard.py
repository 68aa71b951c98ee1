"""From a servicer's methods to gRPC handlers: the one place where what goes wrong in a call becomes its status.

Requests arrive here as bytes, so that one that is no valid message gets a status of ours. A CallError is told to the
client; gRPC's own exceptions mean that the client is gone; anything else is a bug, logged and told as INTERNAL. Knows
descriptors, knows no method by name.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
import structlog
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from gateway import access, errors
from gateway.accounts import Accounts
from gateway.errors import CallError
from tandem.v1 import errors_pb2 as reasons

log = structlog.get_logger()

Context = grpc.aio.ServicerContext[bytes, Message]
Method = Callable[[Any, Context], Awaitable[Message | None]]


class Guard:
    """Stands before every method of every service of one server."""

    def __init__(self, max_message_bytes: int, accounts: Accounts) -> None:
        self._max_message_bytes = max_message_bytes
        self._accounts = accounts
        self._num_active = 0
        # Set while every client has been told the end of its call.
        self.idle = asyncio.Event()
        self.idle.set()

    def add_service(self, server: grpc.aio.Server, service: ServiceDescriptor, servicer: object) -> None:
        """Serve every method of a service; the servicer has a coroutine method for each, of the same name."""
        handlers = {method.name: self._handler(method, getattr(servicer, method.name)) for method in service.methods}
        generic = grpc.method_handlers_generic_handler(service.full_name, handlers)
        server.add_generic_rpc_handlers((generic,))

    def _handler(self, descriptor: MethodDescriptor, method: Method) -> "grpc.RpcMethodHandler[bytes, Message]":
        assert not descriptor.client_streaming, f"{descriptor.full_name}: client streams are not served"
        request_class = message_factory.GetMessageClass(descriptor.input_type)

        async def guarded(raw: bytes, context: Context) -> bytes | None:
            self._num_active += 1
            self.idle.clear()
            try:
                decode = partial(_decoded, request_class, raw, self._max_message_bytes)
                return await self._outcome(descriptor, method, decode, context)
            finally:
                self._num_active -= 1
                if not self._num_active:
                    self.idle.set()

        if descriptor.server_streaming:
            return grpc.unary_stream_rpc_method_handler(guarded, response_serializer=self._serialized)
        return grpc.unary_unary_rpc_method_handler(guarded)

    async def _outcome(
        self, descriptor: MethodDescriptor, method: Method, request: Callable[[], Message], context: Context
    ) -> bytes | None:
        """A unary call's answer, written out here, where what goes wrong with it still has a status."""
        try:
            with self._accounts.account(descriptor, context), access.caller().call():
                answer = await method(request(), context)
                return None if answer is None else self._serialized(answer)
        except CallError as error:
            status = errors.status(error)
        except grpc.aio.BaseError:
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # gRPC's own: the client is gone
            # Something inside gave up. gRPC would take it for its own and leave the client without a status.
            log.error("call.given_up", method=descriptor.full_name)
            status = errors.status(CallError(reasons.ERROR_REASON_INTERNAL, "the server gave the call up"))
        except Exception:  # the one net under every call: a bug ends its call, not the server, and never as UNKNOWN
            log.exception("call.bug", method=descriptor.full_name)
            status = errors.status(CallError(reasons.ERROR_REASON_INTERNAL, "a bug in the server; its log tells more"))
        # A call that was ended over a stuck write has its status already.
        if not context.done():
            # The client may go between that look and its status, which then has nobody to reach.
            with contextlib.suppress(grpc.aio.InternalError):
                await context.abort_with_status(status)
        return None

    def _serialized(self, message: Message) -> bytes:
        """Raises CallError for what the transport would not send; a stream meets it where it writes."""
        raw = message.SerializeToString()
        _check_size("the answer", raw, self._max_message_bytes)
        return raw


def _check_size(what: str, raw: bytes, max_bytes: int) -> None:
    if len(raw) > max_bytes:
        message = f"{what} has {len(raw)} bytes, a message may have {max_bytes}"
        sizes = {"limit": str(max_bytes), "given": str(len(raw))}
        raise CallError(reasons.ERROR_REASON_MESSAGE_TOO_LARGE, message, metadata=sizes)


def _decoded(request_class: type[Message], raw: bytes, max_bytes: int) -> Message:
    _check_size("the request", raw, max_bytes)
    try:
        return request_class.FromString(raw)
    except DecodeError as error:
        message = f"the request is no valid {request_class.DESCRIPTOR.full_name}"
        raise CallError(reasons.ERROR_REASON_MALFORMED_REQUEST, message) from error
