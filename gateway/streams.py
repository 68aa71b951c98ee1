"""One call from its request to its last word, over gRPC: the only code that writes to clients of generation.

Both kinds of call follow the same path: terms, an open call, the prompt, the engine, the mailbox. A unary call waits
for everything; a stream writes whatever lies in the mailbox, which merges by itself while a write is in flight. Knows
no link. Invariants: initial metadata goes out with the first word, so that a client may still retry before it; a
CancelledError is never swallowed; whatever happens, the call is released.
"""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import grpc
from google.protobuf.message import Message

from gateway import access, errors
from gateway.admission import Request, Terms
from gateway.calls import Call
from gateway.errors import CallError
from gateway.prompts import Prompt, Prompts
from gateway.replies import Shape
from gateway.service import Gateway
from gateway.summary import summary

R = TypeVar("R", bound=Request)
Context = grpc.aio.ServicerContext[bytes, Message]

# How much later than a new call the end of an older one may be heard of.
CANCEL_LAG_S = 0.1


@dataclass(frozen=True)
class Streams(Generic[R]):
    """The two ways to answer one kind of request: encode makes its prompt, shape words its replies."""

    gateway: Gateway
    encode: Callable[[Prompts, R, Terms], Awaitable[Prompt]]
    shape: Callable[[Terms], Shape]

    async def unary(self, request: R, context: Context) -> Message:
        """One answer, when every sequence has ended."""
        terms = await self._terms(request)
        with self.gateway.call(terms, is_stream=False) as call:
            await self._submit(call, terms, request, context)
            pieces = await call.mailbox.take()
            total = summary(call, self.gateway.clock())
            await _greet(call, context)
            context.set_trailing_metadata(total.trailers())
            return self.shape(terms).whole(call, pieces, total)

    async def stream(self, request: R, context: Context) -> None:
        """Answers as they come."""
        terms = await self._terms(request)
        with self.gateway.call(terms, is_stream=True) as call:
            call.abort = partial(_abort, context)
            await self._submit(call, terms, request, context)
            await self._write_all(call, self.shape(terms), context)

    async def _terms(self, request: R) -> Terms:
        terms = self.gateway.engine.served().admission.terms(request)
        terms = replace(terms, tenant=access.caller().tenant_for(terms.tenant))
        # A client may cancel a call and use its id again at once, and gRPC may tell of the new call first.
        await self.gateway.calls.wait_for_id(terms.request_id, CANCEL_LAG_S)
        return terms

    async def _submit(self, call: Call, terms: Terms, request: R, context: Context) -> None:
        prompt = await self.encode(self.gateway.engine.served().prompts, request, terms)
        self.gateway.submit(call, terms, prompt, context.time_remaining())

    async def _write_all(self, call: Call, shape: Shape, context: Context) -> None:
        clock = self.gateway.clock
        pieces = await call.mailbox.take()
        await _greet(call, context)
        num_ended = 0
        while True:
            for piece in pieces:
                num_ended += piece.end is not None
                last = summary(call, clock()) if num_ended == call.n else None
                call.writing_since = clock()
                await context.write(shape.chunk(call, piece, last))
                call.writing_since = None
                if last is not None:
                    context.set_trailing_metadata(last.trailers())
                    return
            pieces = await call.mailbox.take()


async def _greet(call: Call, context: Context) -> None:
    await context.send_initial_metadata((("x-request-id", call.identity.request),))


async def _abort(context: Context, error: CallError) -> None:
    """Tell a client that does not read how its call ended; it learns of it when it reads on, or never."""
    with contextlib.suppress(grpc.aio.BaseError):
        await context.abort_with_status(errors.status(error))
