"""The end of a call whose client leaves just then; all else about calls is tested on whole servers."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from gateway import errors
from gateway.accounts import Accounts
from gateway.errors import CallError
from gateway.guard import Guard
from tandem.v1 import errors_pb2 as reasons
from tandem.v1 import models_pb2

SERVICE = models_pb2.DESCRIPTOR.services_by_name["ModelService"]


class Context:
    """Of a call that seems to be there until its status is sent."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure
        self.statuses: list[Any] = []

    def time_remaining(self) -> None:
        return None

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def done(self) -> bool:
        return False

    async def abort_with_status(self, status: Any) -> None:
        self.statuses.append(status)
        raise self._failure


def call(context: Context) -> None:
    """A method that refuses, of a guarded service."""

    async def refuse(_request: object, _context: object) -> None:
        raise CallError(reasons.ERROR_REASON_INTERNAL, "refused")

    added: list[Any] = []
    server = SimpleNamespace(add_generic_rpc_handlers=added.extend)
    servicer = SimpleNamespace(**{method.name: refuse for method in SERVICE.methods})
    guard = Guard(1000, Accounts(lambda: 0.0))
    guard.add_service(cast("grpc.aio.Server", server), SERVICE, servicer)
    details = SimpleNamespace(method=f"/{SERVICE.full_name}/{SERVICE.methods[0].name}", invocation_metadata=())
    asyncio.run(added[0].service(details).unary_unary(b"", context))
    assert guard.idle.is_set()


def test_a_client_that_leaves_before_its_status_is_no_error() -> None:
    context = Context(grpc.aio.InternalError("the call is over"))
    call(context)
    assert context.statuses == [errors.status(CallError(reasons.ERROR_REASON_INTERNAL, "refused"))]


def test_that_a_call_was_aborted_is_told_to_the_library() -> None:
    with pytest.raises(grpc.aio.AbortError):
        call(Context(grpc.aio.AbortError("Locally aborted.")))
