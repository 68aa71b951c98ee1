"""How every failure looks to a client: one table from reason to status code, and the google.rpc details around it.

A CallError is the one exception that ends a call on purpose. Reasons are the public enum of errors.proto; whatever the
engine says (FailureReason) maps to one of them here and nowhere else. Knows no call and no link. Invariant: every
reason has a status code, none of them UNKNOWN, every FailureReason but NONE has a reason, and a status is small enough
for every client, however much is wrong.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from services.wire.messages import FailureReason
from tandem.v1 import errors_pb2 as reasons
from tandem.v1.errors_pb2 import ErrorReason

DOMAIN = "tandem"
PREFIX = "ERROR_REASON_"
# What a client is told to wait when nothing better is known.
DEFAULT_RETRY_S = 1.0
# A status travels as metadata, of which clients take 8 KiB by default, and there it is told twice: percent-encoded and
# in base64. Bytes of UTF-8.
MAX_MESSAGE_BYTES = 768
MAX_DESCRIPTION_BYTES = 512
MAX_VIOLATION_BYTES = 1536  # of all of them together

_CODES: Mapping["ErrorReason", int] = MappingProxyType(
    {
        reasons.ERROR_REASON_INVALID_FIELD: code_pb2.INVALID_ARGUMENT,
        reasons.ERROR_REASON_MALFORMED_REQUEST: code_pb2.INVALID_ARGUMENT,
        reasons.ERROR_REASON_CONTEXT_LENGTH_EXCEEDED: code_pb2.INVALID_ARGUMENT,
        reasons.ERROR_REASON_MODEL_NOT_FOUND: code_pb2.NOT_FOUND,
        reasons.ERROR_REASON_NO_CHAT_TEMPLATE: code_pb2.FAILED_PRECONDITION,
        reasons.ERROR_REASON_DUPLICATE_REQUEST_ID: code_pb2.ALREADY_EXISTS,
        reasons.ERROR_REASON_QUEUE_FULL: code_pb2.RESOURCE_EXHAUSTED,
        reasons.ERROR_REASON_TOO_MANY_CALLS: code_pb2.RESOURCE_EXHAUSTED,
        reasons.ERROR_REASON_KV_CAPACITY: code_pb2.RESOURCE_EXHAUSTED,
        reasons.ERROR_REASON_SLOW_READER: code_pb2.RESOURCE_EXHAUSTED,
        reasons.ERROR_REASON_DEADLINE: code_pb2.DEADLINE_EXCEEDED,
        reasons.ERROR_REASON_DEADLINE_UNREACHABLE: code_pb2.DEADLINE_EXCEEDED,
        reasons.ERROR_REASON_CANCELLED: code_pb2.CANCELLED,
        reasons.ERROR_REASON_NOT_READY: code_pb2.UNAVAILABLE,
        reasons.ERROR_REASON_DRAINING: code_pb2.UNAVAILABLE,
        reasons.ERROR_REASON_ENGINE_DEAD: code_pb2.UNAVAILABLE,
        reasons.ERROR_REASON_POISONED_ROW: code_pb2.INTERNAL,
        reasons.ERROR_REASON_STEP_FAILED: code_pb2.INTERNAL,
        reasons.ERROR_REASON_CONSTRAINT_FAILED: code_pb2.FAILED_PRECONDITION,
        reasons.ERROR_REASON_INTERNAL: code_pb2.INTERNAL,
        reasons.ERROR_REASON_UNAUTHENTICATED: code_pb2.UNAUTHENTICATED,
        reasons.ERROR_REASON_PERMISSION_DENIED: code_pb2.PERMISSION_DENIED,
        reasons.ERROR_REASON_RATE_LIMITED: code_pb2.RESOURCE_EXHAUSTED,
        reasons.ERROR_REASON_MESSAGE_TOO_LARGE: code_pb2.RESOURCE_EXHAUSTED,
    }
)

_FAILURES: Mapping[FailureReason, "ErrorReason"] = MappingProxyType(
    {
        FailureReason.QUEUE_FULL: reasons.ERROR_REASON_QUEUE_FULL,
        FailureReason.KV_CAPACITY: reasons.ERROR_REASON_KV_CAPACITY,
        FailureReason.CONTEXT_LENGTH: reasons.ERROR_REASON_CONTEXT_LENGTH_EXCEEDED,
        FailureReason.DEADLINE: reasons.ERROR_REASON_DEADLINE,
        FailureReason.DEADLINE_UNREACHABLE: reasons.ERROR_REASON_DEADLINE_UNREACHABLE,
        FailureReason.DUPLICATE: reasons.ERROR_REASON_DUPLICATE_REQUEST_ID,
        FailureReason.POISONED_ROW: reasons.ERROR_REASON_POISONED_ROW,
        FailureReason.STEP_FAILED: reasons.ERROR_REASON_STEP_FAILED,
        FailureReason.CONSTRAINT_FAILED: reasons.ERROR_REASON_CONSTRAINT_FAILED,
        FailureReason.ENGINE_DEAD: reasons.ERROR_REASON_ENGINE_DEAD,
        FailureReason.DRAINING: reasons.ERROR_REASON_DRAINING,
        FailureReason.SLOW_READER: reasons.ERROR_REASON_SLOW_READER,
    }
)

# Another try may succeed: these always carry RetryInfo.
_RETRIABLE = frozenset(
    {
        reasons.ERROR_REASON_QUEUE_FULL,
        reasons.ERROR_REASON_TOO_MANY_CALLS,
        reasons.ERROR_REASON_NOT_READY,
        reasons.ERROR_REASON_DRAINING,
        reasons.ERROR_REASON_RATE_LIMITED,
    }
)

# What ran out, for QuotaFailure; a rate limit names its own.
_QUOTAS: Mapping["ErrorReason", str] = MappingProxyType(
    {
        reasons.ERROR_REASON_QUEUE_FULL: "waiting sequences",
        reasons.ERROR_REASON_TOO_MANY_CALLS: "open calls",
        reasons.ERROR_REASON_KV_CAPACITY: "KV blocks",
        reasons.ERROR_REASON_MESSAGE_TOO_LARGE: "message bytes",
    }
)


@dataclass(frozen=True)
class Violation:
    """One field that is wrong, by its path in the request, and why."""

    field: str
    description: str


@dataclass(eq=False)
class CallError(Exception):
    """Ends a call with a status: a reason of the public table, a sentence for the user, and details."""

    reason: "ErrorReason"
    message: str
    violations: tuple[Violation, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None
    quota: str = ""  # what ran out, where the reason alone does not say it
    trailers: tuple[tuple[str, str], ...] = ()  # trailing metadata: what the call cost until it failed

    def __str__(self) -> str:
        return f"{self.reason_name}: {self.message}"

    @property
    def reason_name(self) -> str:
        """The reason as ErrorInfo carries it."""
        return ErrorReason.Name(self.reason).removeprefix(PREFIX)

    @property
    def code_name(self) -> str:
        """The name of its gRPC status code."""
        return str(code_pb2.Code.Name(_CODES[self.reason]))


def invalid(violations: Iterable[Violation]) -> CallError:
    """The error for fields that are wrong."""
    found = tuple(violations)
    message = "; ".join(f"{violation.field}: {violation.description}" for violation in found)
    return CallError(reasons.ERROR_REASON_INVALID_FIELD, message, violations=found)


def failed(
    failure: FailureReason, detail: str, retry_after_ms: int | None = None, constraint_field: str = "sampling"
) -> CallError:
    """The error for a sequence that the engine ended FAILED, or a request that it refused.

    constraint_field: where the request's constraint stands, which only the engine can compile.
    """
    if failure == FailureReason.CONSTRAINT_INVALID:
        return invalid([Violation(constraint_field, detail)])
    retry_after_s = None if retry_after_ms is None else retry_after_ms / 1000
    message = detail or failure.name.lower().replace("_", " ")
    return CallError(_FAILURES[failure], message, retry_after_s=retry_after_s)


def status(error: CallError) -> grpc.Status:
    """The gRPC status of an error: code, message, details, and the trailing metadata that go with them."""
    proto = status_pb2.Status(code=_CODES[error.reason], message=_clipped(error.message, MAX_MESSAGE_BYTES))
    proto.details.extend(_packed(detail) for detail in _details(error))
    plain: grpc.Status = rpc_status.to_status(proto)
    return _Status(plain.code, plain.details, (*plain.trailing_metadata, *_pushback(error), *error.trailers))


@dataclass(frozen=True)
class _Status(grpc.Status):
    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def _details(error: CallError) -> Iterable[Message]:
    yield error_details_pb2.ErrorInfo(reason=error.reason_name, domain=DOMAIN, metadata=error.metadata)
    if error.violations:
        fields = [
            error_details_pb2.BadRequest.FieldViolation(field=violation.field, description=violation.description)
            for violation in _told(error.violations)
        ]
        yield error_details_pb2.BadRequest(field_violations=fields)
    quota = error.quota or _QUOTAS.get(error.reason)
    if quota is not None:
        violation = error_details_pb2.QuotaFailure.Violation(
            subject=quota, description=_clipped(error.message, MAX_DESCRIPTION_BYTES)
        )
        yield error_details_pb2.QuotaFailure(violations=[violation])
    retry_after_ms = _retry_after_ms(error)
    if retry_after_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(retry_after_ms)
        yield error_details_pb2.RetryInfo(retry_delay=delay)


def _told(violations: Iterable[Violation]) -> Iterator[Violation]:
    """The first of them, as many as a status has room for; at least one."""
    left = MAX_VIOLATION_BYTES
    for violation in violations:
        description = _clipped(violation.description, MAX_DESCRIPTION_BYTES)
        left -= len(violation.field.encode()) + len(description.encode())
        if left < 0:
            return
        yield Violation(violation.field, description)


def _clipped(text: str, max_bytes: int) -> str:
    """The text, or its beginning and three dots."""
    raw = text.encode()
    return text if len(raw) <= max_bytes else raw[: max_bytes - 3].decode(errors="ignore") + "..."


def _retry_after_ms(error: CallError) -> int | None:
    retry_after_s = error.retry_after_s
    if retry_after_s is None and error.reason in _RETRIABLE:
        retry_after_s = DEFAULT_RETRY_S
    return None if retry_after_s is None else round(retry_after_s * 1000)


def _pushback(error: CallError) -> Iterable[tuple[str, str]]:
    """RetryInfo once more, as gRPC's own retries read it."""
    retry_after_ms = _retry_after_ms(error)
    if retry_after_ms is not None:
        yield ("grpc-retry-pushback-ms", str(retry_after_ms))


def _packed(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
