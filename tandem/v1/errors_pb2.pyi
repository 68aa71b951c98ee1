from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_MALFORMED_REQUEST: _ClassVar[ErrorReason]
    ERROR_REASON_CONTEXT_LENGTH_EXCEEDED: _ClassVar[ErrorReason]
    ERROR_REASON_MODEL_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_NO_CHAT_TEMPLATE: _ClassVar[ErrorReason]
    ERROR_REASON_DUPLICATE_REQUEST_ID: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_MANY_CALLS: _ClassVar[ErrorReason]
    ERROR_REASON_KV_CAPACITY: _ClassVar[ErrorReason]
    ERROR_REASON_SLOW_READER: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE_UNREACHABLE: _ClassVar[ErrorReason]
    ERROR_REASON_CANCELLED: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_READY: _ClassVar[ErrorReason]
    ERROR_REASON_DRAINING: _ClassVar[ErrorReason]
    ERROR_REASON_ENGINE_DEAD: _ClassVar[ErrorReason]
    ERROR_REASON_POISONED_ROW: _ClassVar[ErrorReason]
    ERROR_REASON_STEP_FAILED: _ClassVar[ErrorReason]
    ERROR_REASON_CONSTRAINT_FAILED: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_PERMISSION_DENIED: _ClassVar[ErrorReason]
    ERROR_REASON_RATE_LIMITED: _ClassVar[ErrorReason]
    ERROR_REASON_MESSAGE_TOO_LARGE: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_MALFORMED_REQUEST: ErrorReason
ERROR_REASON_CONTEXT_LENGTH_EXCEEDED: ErrorReason
ERROR_REASON_MODEL_NOT_FOUND: ErrorReason
ERROR_REASON_NO_CHAT_TEMPLATE: ErrorReason
ERROR_REASON_DUPLICATE_REQUEST_ID: ErrorReason
ERROR_REASON_QUEUE_FULL: ErrorReason
ERROR_REASON_TOO_MANY_CALLS: ErrorReason
ERROR_REASON_KV_CAPACITY: ErrorReason
ERROR_REASON_SLOW_READER: ErrorReason
ERROR_REASON_DEADLINE: ErrorReason
ERROR_REASON_DEADLINE_UNREACHABLE: ErrorReason
ERROR_REASON_CANCELLED: ErrorReason
ERROR_REASON_NOT_READY: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
ERROR_REASON_ENGINE_DEAD: ErrorReason
ERROR_REASON_POISONED_ROW: ErrorReason
ERROR_REASON_STEP_FAILED: ErrorReason
ERROR_REASON_CONSTRAINT_FAILED: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_PERMISSION_DENIED: ErrorReason
ERROR_REASON_RATE_LIMITED: ErrorReason
ERROR_REASON_MESSAGE_TOO_LARGE: ErrorReason
