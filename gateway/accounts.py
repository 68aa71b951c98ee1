"""Accounts: what every call cost and how it ended, told once, when it is over.

The guard opens an Account when a call arrives and closes it when its client has been told the end; whoever serves the
call finds it by `current` and adds what it knows. Observers (the log, metrics, traces) are handed a Record and nothing
else, so that nothing but the end of a call pays for them. Knows no link; no text of a client is kept here.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from gateway.admission import Terms
from gateway.calls import Call
from gateway.errors import CallError
from gateway.summary import summary
from services.wire.messages import FinishReason, Timings
from tandem.v1 import errors_pb2 as reasons

log = structlog.get_logger()

Context = grpc.aio.ServicerContext[bytes, Message]

OK = "OK"
ABORTED = "abort"
GENERATION_METHODS = frozenset({"Generate", "StreamGenerate", "Chat", "StreamChat"})
FINISHES = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.CANCELLED: ABORTED}
TRACE_KEYS = ("traceparent", "tracestate")
# gRPC ends a call at its deadline a moment before or after this process would.
DEADLINE_SLACK_S = 0.01


@dataclass(frozen=True)
class Generation:
    """The part of a record that only calls of generation have. Times: the gateway's monotonic seconds."""

    request_id: str
    tenant: str
    n: int
    max_tokens: int | None
    finishes: tuple[str, ...]  # one a sequence: stop, length, abort or error
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    submitted: float | None
    first_token: float | None
    last_token: float | None
    engine: Timings  # as the engine saw it; zeros where it said nothing

    def inter_token_s(self) -> float | None:
        """The mean time between the tokens of a sequence; None for less than two."""
        gaps = self.num_output_tokens / self.n - 1
        if self.first_token is None or self.last_token is None or gaps < 1:
            return None
        return (self.last_token - self.first_token) / gaps


@dataclass(frozen=True)
class Record:
    """One call, from its arrival to its end. Times: the gateway's monotonic seconds."""

    service: str
    method: str
    is_stream: bool
    code: str  # the name of its gRPC status code
    reason: str  # the name of its ErrorReason; empty when it ended well
    arrived: float
    ended: float
    traceparent: str
    tracestate: str
    generation: Generation | None  # None for other calls, and for those refused before they were open

    @property
    def is_generation(self) -> bool:
        """Whether it asked for text, also when it was refused before it was open."""
        return self.method in GENERATION_METHODS

    def ttft_s(self) -> float | None:
        """From the arrival to the first token."""
        first = None if self.generation is None else self.generation.first_token
        return None if first is None else first - self.arrived


Observer = Callable[[Record], None]


@dataclass(slots=True)
class Account:
    """One call that goes on."""

    service: str = ""
    method: str = ""
    is_stream: bool = False
    arrived: float = 0.0
    deadline: float | None = None
    traceparent: str = ""
    tracestate: str = ""
    call: Call | None = None
    terms: Terms | None = None

    def open(self, call: Call, terms: Terms) -> None:
        """It is a call of generation, and open now."""
        self.call, self.terms = call, terms

    def close(self, error: BaseException | None, now: float) -> Record:
        """It is over, by this error or well."""
        failure = self._failure(error, now)
        return Record(
            service=self.service,
            method=self.method,
            is_stream=self.is_stream,
            code=OK if failure is None else failure.code_name,
            reason="" if failure is None else failure.reason_name,
            arrived=self.arrived,
            ended=now,
            traceparent=self.traceparent,
            tracestate=self.tracestate,
            generation=None if self.call is None or self.terms is None else _generation(self.call, self.terms),
        )

    def _failure(self, error: BaseException | None, now: float) -> CallError | None:
        """Why it failed. Of a client that is gone this side knows only what it was about to tell it."""
        if error is None or isinstance(error, CallError):
            return error
        if self.call is not None and self.call.mailbox.error is not None:
            return self.call.mailbox.error
        if self.deadline is not None and now >= self.deadline - DEADLINE_SLACK_S:
            return CallError(reasons.ERROR_REASON_DEADLINE, "the deadline passed")
        if _is_client_gone(error):
            return CallError(reasons.ERROR_REASON_CANCELLED, "the client is gone")
        return CallError(reasons.ERROR_REASON_INTERNAL, type(error).__name__)


def _is_client_gone(error: BaseException) -> bool:
    """gRPC cancels the task of a call whose client is gone; a CancelledError from inside is nobody's wish."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or bool(task.cancelling())
    return isinstance(error, GeneratorExit | grpc.aio.BaseError)


_current: ContextVar[Account | None] = ContextVar("account", default=None)


def current() -> Account:
    """The account of the call that this task serves; one that nobody reads where there is none."""
    return _current.get() or Account()


@dataclass
class Accounts:
    """The accounts of one server. clock: monotonic seconds."""

    clock: Callable[[], float]
    observers: list[Observer] = field(default_factory=list)

    @contextmanager
    def account(self, method: MethodDescriptor, context: Context) -> Iterator[Account]:
        """One call, while the block lasts; whatever leaves the block is how it ended, and goes on."""
        now, remaining_s = self.clock(), context.time_remaining()
        trace = {str(key): value for key, value in context.invocation_metadata() or () if key in TRACE_KEYS}
        account = Account(
            service=method.containing_service.full_name,
            method=method.name,
            is_stream=method.server_streaming,
            arrived=now,
            deadline=None if remaining_s is None else now + remaining_s,
            traceparent=str(trace.get("traceparent", "")),
            tracestate=str(trace.get("tracestate", "")),
        )
        token = _current.set(account)
        try:
            yield account
        finally:
            _current.reset(token)
            record = account.close(sys.exception(), self.clock())
            for observe in self.observers:
                observe(record)


def log_record(record: Record) -> None:
    """The access log: one line a call, without a word of what was said. Other calls than those of generation show at
    debug as long as they end well."""
    fields: dict[str, object] = {
        "method": f"{record.service}/{record.method}",
        "code": record.code,
        "e2e_ms": _ms(record.ended - record.arrived),
    }
    if record.reason:
        fields["reason"] = record.reason
    done = record.generation
    if done is not None:
        ttft_s = record.ttft_s()
        fields |= {
            "request_id": done.request_id,
            "tenant": done.tenant,
            "finish": done.finishes,
            "num_prompt_tokens": done.num_prompt_tokens,
            "num_cached_tokens": done.num_cached_tokens,
            "num_output_tokens": done.num_output_tokens,
            "queue_ms": done.engine.queue_us / 1000,
            "ttft_ms": None if ttft_s is None else _ms(ttft_s),
        }
    level = logging.DEBUG if done is None and record.code == OK else logging.INFO
    log.log(level, "call.ended", **fields)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _generation(call: Call, terms: Terms) -> Generation:
    usage = summary(call, 0.0).usage
    first = call.ends.get(0)
    return Generation(
        request_id=call.identity.request,
        tenant=terms.tenant,
        n=call.n,
        max_tokens=terms.stopping.max_tokens,
        finishes=tuple(_finish(call, index) for index in range(call.n)),
        num_prompt_tokens=usage.prompt_tokens,
        num_output_tokens=usage.completion_tokens,
        num_cached_tokens=usage.cached_tokens,
        submitted=call.submitted,
        first_token=call.first_token,
        last_token=max(call.last_tokens) or None,
        engine=Timings() if first is None else first.timings,
    )


def _finish(call: Call, index: int) -> str:
    """As dashboards of the field know it: whoever is broken off by a failure ends in error, by a client in abort."""
    end = call.ends.get(index)
    if end is not None and end.reason in FINISHES:
        return FINISHES[end.reason]
    error = call.mailbox.error
    return ABORTED if error is None or error.reason == reasons.ERROR_REASON_CANCELLED else "error"
