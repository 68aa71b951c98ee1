"""What can go wrong with a call, as a client sees it.

TandemError
├── InvalidRequest                  the request must change; `fields` names what is wrong
│   └── ContextLengthExceeded       prompt, or prompt + max_tokens, is longer than the model's context
├── ModelNotFound                   no model of that name is served
├── DuplicateRequestId              another live call has this request_id
├── PreconditionFailed              right request, wrong server state
│   ├── NoChatTemplate              the model cannot chat
│   └── ConstraintFailed            structured output reached a dead end
├── Unauthenticated                 no bearer token, or one that the server does not know
├── PermissionDenied                the token does not allow it
├── Overloaded                      the server has no room; see `retry_after_s`
│   ├── QueueFull
│   ├── TooManyCalls
│   ├── RateLimited                 the token has used up its calls
│   ├── MessageTooLarge             the request, or its answer, is larger than a message may be
│   ├── KvCapacity                  the request can never fit in this server's memory
│   └── SlowReader                  the stream was not read for too long
├── DeadlineExceeded                the call's timeout passed
│   └── DeadlineUnreachable         it could not have been met
├── Cancelled                       the call was cancelled
├── Unavailable                     the server cannot serve now; see `retry_after_s`
│   ├── ConnectionFailed            nobody answers at this address
│   ├── NotReady                    the server is starting
│   ├── Draining                    the server is shutting down
│   └── EngineDead                  a process of the engine is gone
└── ServerError                     the fault is the server's
    ├── PoisonedRow                 the model produced no usable value
    └── StepFailed                  every step with this sequence failed

Chosen by ErrorInfo.reason, and by the status code where a server gives no reason.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
from google.rpc import error_details_pb2, status_pb2

DOMAIN = "tandem"
DETAILS_KEY = "grpc-status-details-bin"
OWN_OF_GRPC = "grpc-"


@dataclass(frozen=True)
class Details:
    """All that came with an error. metadata: ErrorInfo's; trailers: what the call had cost until it failed."""

    message: str
    code: grpc.StatusCode
    reason: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    trailers: Mapping[str, str] = field(default_factory=dict)


class TandemError(Exception):
    """Every failure of a call."""

    def __init__(self, details: Details) -> None:
        super().__init__(details.message)
        self.details = details

    @property
    def code(self) -> grpc.StatusCode:
        """The gRPC status code."""
        return self.details.code

    @property
    def reason(self) -> str:
        """The name of an ErrorReason of the public contract; empty where the server gave none."""
        return self.details.reason

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields that are wrong, by path, and why."""
        return self.details.fields

    @property
    def retry_after_s(self) -> float | None:
        """How long to wait before another try; None where the server suggests none."""
        return self.details.retry_after_s


class InvalidRequest(TandemError):
    """The request must change."""


class ContextLengthExceeded(InvalidRequest):
    """The prompt, or prompt + max_tokens, is longer than the model's context."""


class ModelNotFound(TandemError):
    """No model of that name is served."""


class DuplicateRequestId(TandemError):
    """Another live call has this request_id."""


class PreconditionFailed(TandemError):
    """A right request that this server cannot serve as it is."""


class NoChatTemplate(PreconditionFailed):
    """The model cannot chat."""


class ConstraintFailed(PreconditionFailed):
    """Structured output reached a dead end."""


class Unauthenticated(TandemError):
    """The call showed no bearer token, or one that the server does not know."""


class PermissionDenied(TandemError):
    """The token does not allow it."""


class Overloaded(TandemError):
    """The server has no room."""


class QueueFull(Overloaded):
    """The waiting queue is full."""


class TooManyCalls(Overloaded):
    """The gateway has as many calls open as it may."""


class RateLimited(Overloaded):
    """The token has used up its calls."""


class MessageTooLarge(Overloaded):
    """The request, or one message of its answer, is larger than a message may be."""


class KvCapacity(Overloaded):
    """The request can never fit in this server's memory."""


class SlowReader(Overloaded):
    """The stream was not read for too long."""


class DeadlineExceeded(TandemError):
    """The call's timeout passed."""


class DeadlineUnreachable(DeadlineExceeded):
    """The call's timeout could not have been met."""


class Cancelled(TandemError):
    """The call was cancelled."""


class Unavailable(TandemError):
    """The server cannot serve now."""


class ConnectionFailed(Unavailable):
    """Nobody answers at this address."""


class NotReady(Unavailable):
    """The server is starting."""


class Draining(Unavailable):
    """The server is shutting down."""


class EngineDead(Unavailable):
    """A process of the engine is gone."""


class ServerError(TandemError):
    """The fault is the server's."""


class PoisonedRow(ServerError):
    """The model produced no usable value."""


class StepFailed(ServerError):
    """Every step with this sequence failed."""


BY_REASON: Mapping[str, type[TandemError]] = {
    "INVALID_FIELD": InvalidRequest,
    "MALFORMED_REQUEST": InvalidRequest,
    "CONTEXT_LENGTH_EXCEEDED": ContextLengthExceeded,
    "MODEL_NOT_FOUND": ModelNotFound,
    "NO_CHAT_TEMPLATE": NoChatTemplate,
    "DUPLICATE_REQUEST_ID": DuplicateRequestId,
    "QUEUE_FULL": QueueFull,
    "TOO_MANY_CALLS": TooManyCalls,
    "KV_CAPACITY": KvCapacity,
    "SLOW_READER": SlowReader,
    "DEADLINE": DeadlineExceeded,
    "DEADLINE_UNREACHABLE": DeadlineUnreachable,
    "CANCELLED": Cancelled,
    "NOT_READY": NotReady,
    "DRAINING": Draining,
    "ENGINE_DEAD": EngineDead,
    "POISONED_ROW": PoisonedRow,
    "STEP_FAILED": StepFailed,
    "CONSTRAINT_FAILED": ConstraintFailed,
    "INTERNAL": ServerError,
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
    "RATE_LIMITED": RateLimited,
    "MESSAGE_TOO_LARGE": MessageTooLarge,
}

# For errors of the transport, which gives no reason, and of servers with reasons that are newer than this client.
BY_CODE: Mapping[grpc.StatusCode, type[TandemError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: ModelNotFound,
    grpc.StatusCode.ALREADY_EXISTS: DuplicateRequestId,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionFailed,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNAVAILABLE: ConnectionFailed,
}


def from_rpc(error: grpc.RpcError) -> TandemError:
    """The exception for a failed call of either kind of channel."""
    details = _details(error)
    if details.reason:
        kind = BY_REASON.get(details.reason) or BY_CODE.get(details.code, ServerError)
        # A reason that is unknown here was still given by a server that was reached.
        return (Unavailable if kind is ConnectionFailed else kind)(details)
    return BY_CODE.get(details.code, ServerError)(details)


def invalid_field(name: str, why: str) -> InvalidRequest:
    """The exception for a value that the request cannot even carry."""
    details = Details(f"{name}: {why}", grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", {name: why})
    return InvalidRequest(details)


def closed() -> Cancelled:
    """The exception for reading on from a stream that was closed here."""
    return Cancelled(Details("the stream was closed", grpc.StatusCode.CANCELLED, "CANCELLED"))


def _details(error: grpc.RpcError) -> Details:
    # A failed call of a synchronous channel and an AioRpcError answer to the same three questions.
    code, message = error.code(), error.details()
    # Its type stub takes the pairs of the trailing metadata for records.
    trailers = dict(cast("Iterable[tuple[str, Any]]", error.trailing_metadata() or ()))
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    retry_after_s = None
    for packed in status_pb2.Status.FromString(trailers.pop(DETAILS_KEY, b"")).details:
        packed.Unpack(info)
        packed.Unpack(bad)
        if packed.Unpack(retry):
            retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
    return Details(
        message=message or code.name.lower().replace("_", " "),
        code=code,
        reason=info.reason if info.domain == DOMAIN else "",
        fields={violation.field: violation.description for violation in bad.field_violations},
        retry_after_s=retry_after_s,
        metadata=dict(info.metadata),
        trailers={name: value for name, value in trailers.items() if not name.startswith(OWN_OF_GRPC)},
    )
