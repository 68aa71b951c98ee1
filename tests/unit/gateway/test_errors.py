"""The table of failures is complete, and its details are what google.rpc says they are."""

import string
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from gateway import errors
from gateway.errors import CallError, Violation
from services.wire.messages import FailureReason
from tandem.v1 import errors_pb2 as reasons
from tandem.v1.errors_pb2 import ErrorReason

KNOWN = [value for value in ErrorReason.values() if value != reasons.ERROR_REASON_UNSPECIFIED]


def details(error: CallError) -> status_pb2.Status:
    metadata = dict(errors.status(error).trailing_metadata or ())
    proto = status_pb2.Status()
    raw = metadata["grpc-status-details-bin"]
    assert isinstance(raw, bytes)
    proto.ParseFromString(raw)
    return proto


@pytest.mark.parametrize("reason", KNOWN)
def test_every_public_reason_has_a_code_and_says_its_name(reason: ErrorReason) -> None:
    error = CallError(reason, "why")
    status = errors.status(error)
    assert status.code not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.OK)
    assert status.details == "why"
    info = error_details_pb2.ErrorInfo()
    assert details(error).details[0].Unpack(info)
    assert (info.domain, f"ERROR_REASON_{info.reason}") == ("tandem", ErrorReason.Name(reason))


@pytest.mark.parametrize("failure", [failure for failure in FailureReason if failure is not FailureReason.NONE])
def test_every_failure_of_the_engine_has_a_reason(failure: FailureReason) -> None:
    error = errors.failed(failure, "")
    assert error.reason in KNOWN
    assert errors.status(error).details, "a failure is never without a word"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (FailureReason.QUEUE_FULL, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (FailureReason.KV_CAPACITY, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (FailureReason.CONTEXT_LENGTH, grpc.StatusCode.INVALID_ARGUMENT),
        (FailureReason.DEADLINE, grpc.StatusCode.DEADLINE_EXCEEDED),
        (FailureReason.DEADLINE_UNREACHABLE, grpc.StatusCode.DEADLINE_EXCEEDED),
        (FailureReason.DUPLICATE, grpc.StatusCode.ALREADY_EXISTS),
        (FailureReason.POISONED_ROW, grpc.StatusCode.INTERNAL),
        (FailureReason.STEP_FAILED, grpc.StatusCode.INTERNAL),
        (FailureReason.CONSTRAINT_FAILED, grpc.StatusCode.FAILED_PRECONDITION),
        (FailureReason.ENGINE_DEAD, grpc.StatusCode.UNAVAILABLE),
        (FailureReason.DRAINING, grpc.StatusCode.UNAVAILABLE),
        (FailureReason.SLOW_READER, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_the_codes_are_those_of_the_contract(failure: FailureReason, code: grpc.StatusCode) -> None:
    assert errors.status(errors.failed(failure, "x")).code is code


def test_violations_and_metadata_travel() -> None:
    error = CallError(
        reasons.ERROR_REASON_INVALID_FIELD, "m", violations=(Violation("a.b", "wrong"),), metadata={"limit": "3"}
    )
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    packed = details(error).details
    assert packed[0].Unpack(info) and packed[1].Unpack(bad)
    assert dict(info.metadata) == {"limit": "3"}
    assert [(violation.field, violation.description) for violation in bad.field_violations] == [("a.b", "wrong")]


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (errors.failed(FailureReason.QUEUE_FULL, "x", retry_after_ms=2500), 2.5),
        (CallError(reasons.ERROR_REASON_DRAINING, "x"), errors.DEFAULT_RETRY_S),
        (CallError(reasons.ERROR_REASON_NOT_READY, "x"), errors.DEFAULT_RETRY_S),
        (CallError(reasons.ERROR_REASON_KV_CAPACITY, "x"), None),
        (CallError(reasons.ERROR_REASON_ENGINE_DEAD, "x"), None),
    ],
)
def test_what_may_be_tried_again_says_when(error: CallError, seconds: float | None) -> None:
    retry = error_details_pb2.RetryInfo()
    found = [packed for packed in details(error).details if packed.Unpack(retry)]
    assert (retry.retry_delay.ToMilliseconds() / 1000 if found else None) == seconds
    pushback = dict(errors.status(error).trailing_metadata or ()).get("grpc-retry-pushback-ms")
    assert pushback == (None if seconds is None else str(int(seconds * 1000))), "gRPC's own retries are told the same"


def test_trailers_of_the_call_go_with_the_details() -> None:
    error = CallError(reasons.ERROR_REASON_INTERNAL, "x", trailers=(("x-request-id", "r"),))
    metadata = dict(errors.status(error).trailing_metadata or ())
    assert metadata["x-request-id"] == "r" and "grpc-status-details-bin" in metadata


@pytest.mark.parametrize("letter", ["x", "\u6f22", "\n"])
def test_a_status_fits_the_metadata_of_every_client_however_much_is_wrong(letter: str) -> None:
    long = letter * 40_000
    many = errors.invalid([Violation(f"messages[{i}].role", "must be one of them") for i in range(1000)])
    for error in (
        many,
        errors.invalid([Violation("sampling.regex", long)]),
        errors.failed(FailureReason.QUEUE_FULL, long),
    ):
        status = errors.status(error)
        shown = quote(status.details, safe=string.punctuation)
        raw = sum(len(value) for _, value in status.trailing_metadata or ())
        assert len(shown) + 4 * raw // 3 < 8192 - 1024, "room for what a call had cost is left"
        assert status.details.endswith("...")
    (violation, *_), told = many.violations, error_details_pb2.BadRequest()
    assert details(many).details[1].Unpack(told)
    assert 10 < len(told.field_violations) < 100
    assert (told.field_violations[0].field, told.field_violations[0].description) == (
        violation.field,
        violation.description,
    )
