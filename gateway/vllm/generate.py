"""One VllmEngine.Generate from its request to its last message; the same path behind it as every other call.

One method serves streams and single answers. smg leaves the stream of a client that went open and sends Abort instead,
so an aborted call ends well, with a Complete that says so. Invariants: whatever happens, the call is released; a
CancelledError is never swallowed.
"""

import contextlib
from dataclasses import replace
from functools import partial

import grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from gateway import errors
from gateway.calls import Call
from gateway.errors import CallError
from gateway.guard import Context
from gateway.service import Gateway
from gateway.streams import CANCEL_LAG_S
from gateway.vllm.replies import Replies
from gateway.vllm.requests import translated
from tandem.v1 import errors_pb2 as reasons

# By this smg tells a constraint that no output can meet from other preconditions.
CONSTRAINT_TRAILER = ("smg-constraint-failed", "engine")


async def generate(gateway: Gateway, request: pb.GenerateRequest, context: Context) -> None:
    """Serve one call; raises CallError."""
    served = gateway.engine.served()
    wanted = translated(request, served.ready.card.context_length)
    terms = served.admission.terms(wanted)
    await gateway.calls.wait_for_id(terms.request_id, CANCEL_LAG_S)
    replies: Replies | None = None
    try:
        with gateway.call(terms, is_stream=request.stream) as call:
            replies = Replies(call, terms, served.ready.card.eos_token_ids)
            call.abort = partial(_abort, context)
            prompt = await served.prompts.of_generate(wanted, terms)
            gateway.submit(call, terms, prompt, context.time_remaining())
            await _write_all(gateway, call, replies, context, is_stream=request.stream)
    except CallError as error:
        if error.reason == reasons.ERROR_REASON_CONSTRAINT_FAILED:
            raise replace(error, trailers=(*error.trailers, CONSTRAINT_TRAILER)) from error
        if error.reason != reasons.ERROR_REASON_CANCELLED or replies is None:
            raise
        for reply in replies.aborted():
            await context.write(reply)


async def _write_all(gateway: Gateway, call: Call, replies: Replies, context: Context, is_stream: bool) -> None:
    num_ended = 0
    while num_ended < call.n:
        for piece in await call.mailbox.take():
            call.writing_since = gateway.clock()
            if is_stream and piece.deltas:
                await context.write(replies.chunk(piece))
            if piece.end is not None:
                num_ended += 1
                await context.write(replies.complete(piece))
            call.writing_since = None


async def _abort(context: Context, error: CallError) -> None:
    with contextlib.suppress(grpc.aio.BaseError):
        await context.abort_with_status(errors.status(error))
