"""The tree of exceptions: every public reason has one, and what came with an error can be read from it."""

from typing import cast

import grpc
import pytest

import tandem.errors as errors
from gateway.errors import CallError, Violation, status
from tandem.v1.errors_pb2 import ErrorReason

KNOWN = [cast("ErrorReason", value) for value in ErrorReason.values() if value]
REASONS = {ErrorReason.Name(value).removeprefix("ERROR_REASON_"): value for value in KNOWN}


class Failed(grpc.RpcError):
    """A failed call, as either kind of channel shows it."""

    def __init__(self, code: grpc.StatusCode, details: str | None, trailers: object = None) -> None:
        self._parts = (code, details, trailers)

    def code(self) -> grpc.StatusCode:
        return self._parts[0]

    def details(self) -> str | None:
        return self._parts[1]

    def trailing_metadata(self) -> object:  # type: ignore[override]
        return self._parts[2]


def raised_by(error: CallError) -> errors.TandemError:
    told = status(error)
    return errors.from_rpc(Failed(told.code, told.details, told.trailing_metadata))


@pytest.mark.parametrize("name", REASONS)
def test_every_reason_has_its_exception(name: str) -> None:
    assert name in errors.BY_REASON
    error = raised_by(CallError(REASONS[name], "why"))
    assert type(error) is errors.BY_REASON[name]
    assert (error.reason, str(error)) == (name, "why")


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    def children(kind: type[errors.TandemError], depth: int) -> list[tuple[int, str]]:
        found = []
        for child in kind.__subclasses__():
            found += [(depth, child.__name__), *children(child, depth + 1)]
        return found

    drawn = []
    for row in (errors.__doc__ or "").splitlines():
        mark = row.find("── ")
        if mark >= 0:
            drawn.append((row.index("─") // 4 + 1, row[mark + 3 :].split()[0]))
    assert sorted(drawn) == sorted(children(errors.TandemError, 1))


def test_fields_retry_metadata_and_trailers_are_read() -> None:
    error = raised_by(
        CallError(
            REASONS["QUEUE_FULL"],
            "full",
            violations=(Violation("a.b", "wrong"),),
            metadata={"limit": "3"},
            retry_after_s=2.5,
            trailers=(("x-request-id", "r"),),
        )
    )
    assert error.fields == {"a.b": "wrong"}
    assert error.retry_after_s == 2.5
    assert error.details.metadata == {"limit": "3"}
    assert error.details.trailers == {"x-request-id": "r"}
    assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.ConnectionFailed),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExceeded),
        (grpc.StatusCode.CANCELLED, errors.Cancelled),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Overloaded),
        (grpc.StatusCode.UNIMPLEMENTED, errors.ServerError),
        (grpc.StatusCode.UNKNOWN, errors.ServerError),
    ],
)
def test_the_transports_own_errors_go_by_their_code(code: grpc.StatusCode, kind: type[errors.TandemError]) -> None:
    error = errors.from_rpc(Failed(code, None))
    assert type(error) is kind
    assert str(error), "an error is never without a word"
