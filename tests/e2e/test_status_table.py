"""The whole table of statuses: every reason that a client can be given, from a real client, with code and details.

Rows that a whole server can be brought to are brought about there, on the echo backend; those that need a fault in
the engine come from a gateway with a scripted engine. `test_no_row_is_missing` holds both against the public enum.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from gateway.engine import Phase
from gateway.server import Ending, EngineGone
from services.runtime import access
from services.runtime.models import resolve
from services.runtime.settings import ModelSettings
from services.tokenizer import Tokenizer, load
from services.wire.messages import EngineDead, FailureReason
from tandem.errors import from_rpc
from tandem.v1 import chat_pb2, common_pb2, control_pb2, inference_pb2
from tandem.v1.errors_pb2 import ErrorReason
from tests.e2e.serving import Serving, serving
from tests.unit.gateway.rig import SETTINGS, TIMING, Front, eventually, read, running
from tests.unit.gateway.test_cancel import slow_channel, stuck_stream

TOKEN = "a-token"
LIMITED = "a-limited-token"
GENERATE, STREAM = "InferenceService/Generate", "InferenceService/StreamGenerate"
LONG_CALL = 30  # tokens, at 20 ms each
# Of every call that began: what it had cost.
COSTS = {"prompt-tokens", "completion-tokens", "cached-tokens", "queue-ms", "ttft-ms", "e2e-ms"}


@dataclass(frozen=True)
class Told:
    """A failed call as its client sees it."""

    code: StatusCode
    reason: str
    details: frozenset[str]  # names of the google.rpc messages beside ErrorInfo
    error: grpc.RpcError
    parts: dict[str, Message]

    @property
    def trailers(self) -> dict[str, Any]:
        pairs: Any = self.error.trailing_metadata() or ()
        return dict(pairs)

    @property
    def has_costs(self) -> bool:
        return {f"x-tandem-{name}" for name in COSTS} <= self.trailers.keys()


def told(error: Any) -> Told:
    """Read every detail of an error; ErrorInfo must be first, and of our domain."""
    trailers: dict[str, Any] = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details()) and status.message
    parts = {packed.TypeName().removeprefix("google.rpc."): _unpacked(packed) for packed in status.details}
    info = parts.pop("ErrorInfo")
    assert isinstance(info, error_details_pb2.ErrorInfo) and info.domain == "tandem"
    retry = parts.get("RetryInfo")
    if isinstance(retry, error_details_pb2.RetryInfo):
        assert retry.retry_delay.ToMilliseconds() > 0
    for quota in getattr(parts.get("QuotaFailure"), "violations", ()):
        assert quota.subject and quota.description
    return Told(error.code(), info.reason, frozenset(parts), error, {**parts, "ErrorInfo": info})


def _unpacked(packed: Packed) -> Message:
    kind: type[Message] = getattr(error_details_pb2, packed.TypeName().rpartition(".")[2])
    found = kind()
    assert packed.Unpack(found)
    return found


# Whole servers -----------------------------------------------------------------------------------------------------


class Table:
    """A server that has room for one running and two waiting sequences, and a client without patience."""

    def __init__(self, serving: Serving, admin: str) -> None:
        self.process = serving.process
        self._channel = grpc.insecure_channel(serving.address)
        self._admin = grpc.insecure_channel(admin)
        self._streams: list[Any] = []

    def call(self, request: Message | bytes, method: str = GENERATE, token: str = TOKEN, seconds: float = 60.0) -> Told:
        """How a call fails, which it must."""
        make: Any = self._channel.unary_stream if "/Stream" in method else self._channel.unary_unary
        raw = request if isinstance(request, bytes) else request.SerializeToString()
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        with pytest.raises(grpc.RpcError) as caught:
            # A stream is read to its end.
            list(make(f"/tandem.v1.{method}")(raw, timeout=seconds, metadata=metadata))
        return told(caught.value)

    def begin(self, token: str = TOKEN, max_tokens: int = 100, seconds: float = 60.0, **fields: Any) -> Any:
        """A stream that goes on until `clear`; its first message has come when it runs."""
        make: Any = self._channel.unary_stream(
            f"/tandem.v1.{STREAM}",
            inference_pb2.GenerateRequest.SerializeToString,
            inference_pb2.GenerateChunk.FromString,
        )
        stream = make(
            prompt(max_tokens=max_tokens, **fields), timeout=seconds, metadata=(("authorization", f"Bearer {token}"),)
        )
        self._streams.append(stream)
        return stream

    def finish(self, max_tokens: int = 2) -> None:
        """A call that runs to its end, once what was cancelled has made room."""
        chunks: list[inference_pb2.GenerateChunk] = []
        while not chunks:
            try:
                chunks = list(self.begin(max_tokens=max_tokens))
            except grpc.RpcError as error:
                if told(error).reason != "QUEUE_FULL":
                    raise
        assert chunks[-1].HasField("usage")

    def end(self) -> Told:
        """How the last stream that was begun ends, which must be badly."""
        with pytest.raises(grpc.RpcError) as caught:
            for _ in self._streams[-1]:
                pass
        return told(caught.value)

    def occupy(self, num_waiting: int = 0) -> Any:
        """One stream runs, and so many wait; the one that runs."""
        running = self.begin()
        next(running)
        for _ in range(num_waiting):
            self.begin()
        return running

    def cancel(self, request_id: str) -> None:
        """What an operator does."""
        make: Any = self._admin.unary_unary(
            "/tandem.v1.ControlService/Cancel",
            control_pb2.CancelRequest.SerializeToString,
            control_pb2.CancelResponse.FromString,
        )
        assert make(control_pb2.CancelRequest(request_ids=[request_id]), timeout=60).num_cancelled == 1

    def clear(self) -> None:
        for stream in self._streams:
            stream.cancel()
        self._streams.clear()

    def close(self) -> None:
        self._channel.close()
        self._admin.close()


def prompt(num_tokens: int = 4, max_tokens: int | None = None, **fields: Any) -> inference_pb2.GenerateRequest:
    ids = common_pb2.TokenIds(ids=range(100, 100 + num_tokens))
    stopping = common_pb2.Stopping(max_tokens=max_tokens)
    return inference_pb2.GenerateRequest(token_ids=ids, stopping=stopping, **fields)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load(resolve(ModelSettings()))


@pytest.fixture(scope="module")
def tokens_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("status") / "tokens"
    names = {"whole": (TOKEN, ""), "limited": (LIMITED, 'tenant = "t"\nmax_calls = 1\n')}
    path.write_text(
        "".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{access.digest(token)}"\n{more}'
            for name, (token, more) in names.items()
        )
    )
    return path


@pytest.fixture(scope="module")
def whole(tokens_file: Path) -> Iterator[Table]:
    settings: dict[str, dict[str, Any]] = {
        "executor": {"backend": "echo", "context_length": 512, "num_blocks": 9, "step_fixed_us": 20_000.0},
        "scheduler": {"max_num_seqs": 1, "max_waiting": 2},
        "gateway": {
            "listen": "127.0.0.1:0",
            "drain_s": 1.0,
            "max_message_bytes": 50_000,
            "tokens": str(tokens_file),
            "tokenless": ["health", "reflection"],
        },
        "links": {"death_s": 30.0},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TANDEM_TOKEN", TOKEN)
        with serving(settings) as server:
            (admin,) = server.process.root.glob("tandem-*/gateway-0.admin")
            table = Table(server, admin.read_text())
            yield table
            table.close()


def _rate_limited(table: Table) -> Told:
    next(table.begin(LIMITED))
    return table.call(prompt(), token=LIMITED)


def _duplicate(table: Table) -> Told:
    next(table.begin(request_id="mine"))
    return table.call(prompt(request_id="mine"))


def _queue_full(table: Table) -> Told:
    for _ in range(2):
        table.finish()
    table.occupy(num_waiting=2)
    return table.call(prompt())


def _unreachable(table: Table) -> Told:
    # The rate is that of a busy engine: calls that take long make it slow, not the time between them.
    for _ in range(2):
        table.finish(max_tokens=LONG_CALL)
    table.occupy(num_waiting=1)
    return table.call(prompt(timeout_ms=100))


def _cancelled(table: Table) -> Told:
    next(table.begin(request_id="doomed"))
    table.cancel("doomed")
    return table.end()


def _deadline(table: Table) -> Told:
    return table.call(prompt(max_tokens=100, timeout_ms=300), STREAM)


def _deadline_in_the_queue(table: Table) -> Told:
    table.occupy()
    return table.call(prompt(timeout_ms=300))


@dataclass(frozen=True)
class Row:
    """One line of the table: how it comes about, and what the client must see."""

    reason: str
    code: StatusCode
    details: tuple[str, ...]
    bring_about: Callable[[Table], Told]
    has_costs: bool = False
    metadata: tuple[str, ...] = ()  # keys of ErrorInfo.metadata


WHOLE = [
    Row(
        "INVALID_FIELD",
        StatusCode.INVALID_ARGUMENT,
        ("BadRequest",),
        lambda table: table.call(prompt(sampling=common_pb2.Sampling(temperature=-1))),
    ),
    Row("MALFORMED_REQUEST", StatusCode.INVALID_ARGUMENT, (), lambda table: table.call(b"\x1a\x02\xff\xfe")),
    Row(
        "CONTEXT_LENGTH_EXCEEDED",
        StatusCode.INVALID_ARGUMENT,
        (),
        lambda table: table.call(prompt(max_tokens=510)),
        True,
        ("limit", "given"),
    ),
    Row(
        "MODEL_NOT_FOUND",
        StatusCode.NOT_FOUND,
        (),
        lambda table: table.call(prompt(model="nobody")),
        metadata=("model",),
    ),
    Row("DUPLICATE_REQUEST_ID", StatusCode.ALREADY_EXISTS, (), _duplicate),
    Row("QUEUE_FULL", StatusCode.RESOURCE_EXHAUSTED, ("RetryInfo", "QuotaFailure"), _queue_full, True),
    Row(
        "KV_CAPACITY",
        StatusCode.RESOURCE_EXHAUSTED,
        ("QuotaFailure",),
        lambda table: table.call(prompt(100, max_tokens=100)),
        True,
    ),
    Row("DEADLINE", StatusCode.DEADLINE_EXCEEDED, (), _deadline, True),
    Row("DEADLINE", StatusCode.DEADLINE_EXCEEDED, (), _deadline_in_the_queue, True),
    Row("DEADLINE_UNREACHABLE", StatusCode.DEADLINE_EXCEEDED, (), _unreachable, True),
    Row("CANCELLED", StatusCode.CANCELLED, (), _cancelled, True),
    Row("UNAUTHENTICATED", StatusCode.UNAUTHENTICATED, (), lambda table: table.call(prompt(), token="")),
    Row("UNAUTHENTICATED", StatusCode.UNAUTHENTICATED, (), lambda table: table.call(prompt(), STREAM, token="wrong")),
    Row(
        "PERMISSION_DENIED",
        StatusCode.PERMISSION_DENIED,
        ("BadRequest",),
        lambda table: table.call(prompt(tenant="u"), token=LIMITED),
    ),
    Row("RATE_LIMITED", StatusCode.RESOURCE_EXHAUSTED, ("RetryInfo", "QuotaFailure"), _rate_limited),
    Row(
        "MESSAGE_TOO_LARGE",
        StatusCode.RESOURCE_EXHAUSTED,
        ("QuotaFailure",),
        lambda table: table.call(bytes(60_000)),
        metadata=("limit", "given"),
    ),
]


def check(row: Row, seen: Told) -> None:
    assert (seen.reason, seen.code, seen.details) == (row.reason, row.code, frozenset(row.details))
    assert seen.has_costs == row.has_costs
    info = seen.parts["ErrorInfo"]
    assert isinstance(info, error_details_pb2.ErrorInfo) and set(info.metadata) == set(row.metadata)


@pytest.mark.parametrize("row", WHOLE, ids=lambda row: row.reason)
def test_a_whole_server_says(whole: Table, row: Row) -> None:
    whole.clear()
    check(row, row.bring_about(whole))
    whole.clear()
    whole.finish()


def test_a_deadline_of_grpc_s_own_ends_the_call_in_the_queue_and_in_mid_stream(whole: Table) -> None:
    whole.clear()
    running = whole.begin(seconds=0.5)
    next(running)
    waiting = whole.begin(seconds=0.5)
    for call in (running, waiting):
        with pytest.raises(grpc.RpcError) as caught:
            for _ in call:
                pass
        assert from_rpc(caught.value).code is StatusCode.DEADLINE_EXCEEDED
    whole.finish()


def test_a_server_that_asks_for_tokens_shows_that_it_is_ready_and_how_to_call_it(whole: Table) -> None:
    whole.process.wait_for(lambda: "Tandem is ready" in whole.process.log.read_text())
    assert "--token TOKEN" in whole.process.log.read_text()


# Faults of the engine ----------------------------------------------------------------------------------------------


async def failing(call: Any) -> Told:
    """How a call or the next read of a stream fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return told(caught.value)


async def _ended(front: Front, failure: FailureReason) -> Told:
    """The engine ends a stream that has begun."""
    stream = front.stream_generate()
    submit = await front.engine.submit()
    front.engine.say(submit, "partial", [5, 6])
    await read(stream)
    front.engine.fail(submit, failure, detail="because", num_output_tokens=2)
    seen = await failing(stream.read())
    assert seen.trailers["x-tandem-completion-tokens"] == "2"
    return seen


FAULTS = {
    "POISONED_ROW": (FailureReason.POISONED_ROW, StatusCode.INTERNAL),
    "STEP_FAILED": (FailureReason.STEP_FAILED, StatusCode.INTERNAL),
    "CONSTRAINT_FAILED": (FailureReason.CONSTRAINT_FAILED, StatusCode.FAILED_PRECONDITION),
}


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("reason", FAULTS)
async def test_a_fault_of_the_engine_is_told_with_what_the_call_had_cost(tokenizer: Tokenizer, reason: str) -> None:
    failure, code = FAULTS[reason]
    async with running(tokenizer) as front:
        seen = await _ended(front, failure)
        assert (seen.reason, seen.code, seen.details, seen.has_costs) == (reason, code, frozenset(), True)


async def _not_ready(tokenizer: Tokenizer) -> Told:
    async with running(tokenizer, is_ready=False) as front:
        return await failing(front.generate())


async def _draining(tokenizer: Tokenizer) -> Told:
    async with running(tokenizer, msgspec.structs.replace(SETTINGS, drain_s=30.0, drain_delay_s=0.0)) as front:
        call = front.generate()
        submit = await front.engine.submit()
        front.server.stop(Ending.DRAIN)
        await eventually(lambda: front.server.gateway.engine.phase is Phase.DRAINING)
        seen = await failing(front.generate())
        front.engine.end(submit)
        await call
        return seen


async def _dead(tokenizer: Tokenizer) -> Told:
    async with running(tokenizer) as front:
        stream = front.stream_generate()
        front.engine.say(await front.engine.submit(), "a", [1])
        await read(stream)
        front.engine.tell(EngineDead("the executor is gone"))
        seen = await failing(stream.read())
        assert seen.has_costs
        with pytest.raises(EngineGone):
            await asyncio.wait_for(front.serving, 5)
        return seen


async def _too_many(tokenizer: Tokenizer) -> Told:
    async with running(tokenizer, msgspec.structs.replace(SETTINGS, max_open_calls=1)) as front:
        call = front.generate()
        submit = await front.engine.submit()
        seen = await failing(front.generate())
        front.engine.end(submit)
        await call
        return seen


async def _slow(tokenizer: Tokenizer) -> Told:
    settings = msgspec.structs.replace(SETTINGS, stall_s=0.3)
    timing = msgspec.structs.replace(TIMING, heartbeat_s=0.1)
    async with running(tokenizer, settings, timing) as front, slow_channel(front) as channel:
        _, rest = await stuck_stream(front, channel)
        await front.engine.cancel()
        seen = await failing(rest)
        assert seen.has_costs
        return seen


async def _no_template(tokenizer: Tokenizer) -> Told:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "chat_template", None)
        async with running(tokenizer) as front:
            said = chat_pb2.ChatMessage(role=chat_pb2.ROLE_USER, content="hi")
            return await failing(
                front.unary("ChatService/Chat", chat_pb2.ChatRequest(messages=[said]), chat_pb2.ChatResponse)
            )


async def _bug(tokenizer: Tokenizer) -> Told:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async with running(tokenizer) as front:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(front.server.gateway, "submit", broken)
            return await failing(front.generate())


SCRIPTED: dict[str, tuple[StatusCode, set[str], Callable[[Tokenizer], Awaitable[Told]]]] = {
    "NOT_READY": (StatusCode.UNAVAILABLE, {"RetryInfo"}, _not_ready),
    "DRAINING": (StatusCode.UNAVAILABLE, {"RetryInfo"}, _draining),
    "ENGINE_DEAD": (StatusCode.UNAVAILABLE, set(), _dead),
    "TOO_MANY_CALLS": (StatusCode.RESOURCE_EXHAUSTED, {"RetryInfo", "QuotaFailure"}, _too_many),
    "SLOW_READER": (StatusCode.RESOURCE_EXHAUSTED, set(), _slow),
    "NO_CHAT_TEMPLATE": (StatusCode.FAILED_PRECONDITION, set(), _no_template),
    "INTERNAL": (StatusCode.INTERNAL, set(), _bug),
}


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("reason", SCRIPTED)
async def test_a_gateway_in_trouble_says(tokenizer: Tokenizer, reason: str) -> None:
    code, details, bring_about = SCRIPTED[reason]
    seen = await bring_about(tokenizer)
    assert (seen.reason, seen.code, seen.details) == (reason, code, frozenset(details))


def test_no_row_is_missing() -> None:
    rows = {row.reason for row in WHOLE} | set(FAULTS) | set(SCRIPTED)
    assert rows == {name.removeprefix("ERROR_REASON_") for name in ErrorReason.DESCRIPTOR.values_by_name} - {
        "UNSPECIFIED"
    }
