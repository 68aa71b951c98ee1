"""docs/errors.md tells of every reason, and what it tells is so."""

import re

import pytest
from google.rpc import error_details_pb2, status_pb2

from gateway import errors
from gateway.errors import CallError, Violation
from tandem.v1 import errors_pb2 as reasons
from tandem.v1.errors_pb2 import ErrorReason
from tests.architecture.tree import ROOT

ROW = re.compile(r"^\| ([A-Z_]+) \| ([A-Z_]+) \| ([A-Za-z, ]*) ?\| [^|]+ \|$", re.MULTILINE)
PAGE = (ROOT / "docs" / "errors.md").read_text()
ROWS = {reason: (code, set(details.replace(",", " ").split())) for reason, code, details in ROW.findall(PAGE)}
# Those that name the field to be changed.
WITH_FIELDS = {"INVALID_FIELD", "PERMISSION_DENIED"}


def test_every_reason_has_a_row() -> None:
    assert list(ROWS) == [name.removeprefix("ERROR_REASON_") for name in ErrorReason.DESCRIPTOR.values_by_name][1:]


@pytest.mark.parametrize("reason", ROWS)
def test_a_row_says_what_is_sent(reason: str) -> None:
    code, details = ROWS[reason]
    violations = (Violation("field", "why"),) if reason in WITH_FIELDS else ()
    error = CallError(getattr(reasons, f"ERROR_REASON_{reason}"), "why", violations=violations)
    if error.reason == reasons.ERROR_REASON_RATE_LIMITED:
        error.quota = "token:a"
    status = errors.status(error)
    assert status.code.name == code
    raw = dict(status.trailing_metadata or ())["grpc-status-details-bin"]
    assert isinstance(raw, bytes)
    sent = [packed.TypeName().removeprefix("google.rpc.") for packed in status_pb2.Status.FromString(raw).details]
    assert set(sent) == details | {"ErrorInfo"} and all(hasattr(error_details_pb2, name) for name in sent)
