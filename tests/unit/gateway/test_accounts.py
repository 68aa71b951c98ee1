"""Each call is told once, when it is over: in the log, and to whoever else wants to know."""

from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import grpc
import msgspec
import pytest
import pytest_asyncio

from gateway.accounts import Record
from services.tokenizer import Tokenizer
from services.wire.messages import FailureReason, FinishReason
from tandem.v1 import inference_pb2 as pb
from tandem.v1 import models_pb2 as models
from tests.unit.gateway.rig import SETTINGS, Front, error_of, eventually, read, rest, running

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def told(front: Front) -> AsyncIterator[list[Record]]:
    """What observers of the shared gateway are told."""
    records: list[Record] = []
    front.server.operations.accounts.observers.append(records.append)
    yield records
    front.server.operations.accounts.observers.remove(records.append)


async def only(records: list[Record]) -> Record:
    await eventually(lambda: bool(records))
    (record,) = records
    return record


async def test_a_call_that_ends_well_is_told_with_what_it_cost(front: Front, told: list[Record]) -> None:
    stream = front.stream_generate(request_id="mine", tenant="blue", stopping={"max_tokens": 9})
    submit = await front.engine.submit()
    for token in (1, 2, 3):
        front.engine.say(submit, "a", [token])
        await read(stream)
    front.engine.end(submit, FinishReason.LENGTH, num_output_tokens=3)
    await rest(stream)
    record = await only(told)
    assert (record.service, record.method, record.is_stream) == ("tandem.v1.InferenceService", "StreamGenerate", True)
    assert (record.code, record.reason) == ("OK", "")
    done = record.generation
    assert done is not None
    assert (done.request_id, done.tenant, done.n, done.max_tokens, done.finishes) == ("mine", "blue", 1, 9, ("length",))
    assert (done.num_prompt_tokens, done.num_output_tokens, done.num_cached_tokens) == (2, 3, 1)
    assert done.engine.queue_us == 1000
    assert done.submitted is not None and done.first_token is not None and done.last_token is not None
    assert record.arrived <= done.submitted <= done.first_token < done.last_token <= record.ended
    assert done.inter_token_s() == pytest.approx((done.last_token - done.first_token) / 2)
    assert record.ttft_s() == done.first_token - record.arrived


async def test_the_log_has_a_line_for_it_without_a_word_of_the_text(
    front: Front, logged: list[MutableMapping[str, Any]]
) -> None:
    call = front.generate(text="Whisper", request_id="mine", tenant="blue")
    submit = await front.engine.submit()
    front.engine.say(submit, "secret", [1, 2])
    front.engine.end(submit)
    await call
    await eventually(lambda: any(entry["event"] == "call.ended" for entry in logged))
    (entry,) = [entry for entry in logged if entry["event"] == "call.ended"]
    assert entry["log_level"] == "info"
    assert (entry["method"], entry["code"]) == ("tandem.v1.InferenceService/Generate", "OK")
    assert (entry["request_id"], entry["tenant"], entry["finish"]) == ("mine", "blue", ("stop",))
    assert (entry["num_prompt_tokens"], entry["num_cached_tokens"], entry["num_output_tokens"]) == (3, 1, 2)
    assert 0 < entry["ttft_ms"] <= entry["e2e_ms"] and entry["queue_ms"] == 1.0
    assert "secret" not in str(logged) and "Whisper" not in str(logged)


async def test_how_it_failed_is_told(front: Front, told: list[Record]) -> None:
    call = front.generate()
    submit = await front.engine.submit()
    front.engine.fail(submit, FailureReason.POISONED_ROW)
    await error_of(call)
    record = await only(told)
    assert (record.code, record.reason) == ("INTERNAL", "POISONED_ROW")
    assert record.generation is not None and record.generation.finishes == ("error",)


async def test_what_is_refused_is_told_too(front: Front, told: list[Record]) -> None:
    await error_of(front.generate(sampling={"top_p": 2.0}))
    record = await only(told)
    assert (record.code, record.reason, record.generation) == ("INVALID_ARGUMENT", "INVALID_FIELD", None)


async def test_a_client_that_leaves_is_told_as_cancelled(front: Front, told: list[Record]) -> None:
    stream = front.stream_generate()
    front.engine.say(await front.engine.submit(), "a", [1])
    await read(stream)
    stream.cancel()
    record = await only(told)
    assert (record.code, record.reason) == ("CANCELLED", "CANCELLED")
    assert record.generation is not None and record.generation.finishes == ("abort",)
    assert record.generation.num_output_tokens == 1


async def test_a_deadline_is_told_as_one(front: Front, told: list[Record]) -> None:
    call = front.unary("InferenceService/Generate", pb.GenerateRequest(text="x"), pb.GenerateResponse, seconds=0.1)
    await front.engine.submit()
    with pytest.raises(grpc.aio.AioRpcError):
        await call
    record = await only(told)
    assert (record.code, record.reason) == ("DEADLINE_EXCEEDED", "DEADLINE")


async def test_a_bug_is_told_as_one(front: Front, told: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front.server.gateway, "submit", None)
    with pytest.raises(grpc.aio.AioRpcError):
        await front.generate()
    assert (await only(told)).code == "INTERNAL"


async def test_each_sequence_has_an_end_of_its_own(front: Front, told: list[Record]) -> None:
    call = front.generate(sampling={"n": 3})
    submit = await front.engine.submit()
    for index in range(3):
        front.engine.say(submit, "a", [1, 2], index=index)
    front.engine.end(submit, index=0)
    front.engine.end(submit, FinishReason.LENGTH, index=1)
    front.engine.fail(submit, FailureReason.STEP_FAILED, index=2)
    await error_of(call)
    record = await only(told)
    assert record.generation is not None and record.generation.finishes == ("stop", "length", "error")


async def test_calls_of_other_kinds_are_quiet_when_they_end_well(
    front: Front, told: list[Record], logged: list[MutableMapping[str, Any]]
) -> None:
    await front.unary("ModelService/ListModels", models.ListModelsRequest(), models.ListModelsResponse)
    record = await only(told)
    assert (record.method, record.code, record.generation) == ("ListModels", "OK", None)
    (entry,) = [entry for entry in logged if entry["event"] == "call.ended"]
    assert entry["log_level"] == "debug"


async def test_the_time_between_tokens_is_counted_token_by_token(tokenizer: Tokenizer) -> None:
    async with running(tokenizer, msgspec.structs.replace(SETTINGS, drain_s=0.1)) as front:
        gaps = front.server.gateway.calls.gaps
        call = front.generate(sampling={"n": 2})
        submit = await front.engine.submit()
        front.engine.say(submit, "a", [1], index=0)
        front.engine.say(submit, "a", [1], index=1)
        (open_call,) = front.server.gateway.calls
        await eventually(lambda: all(open_call.last_tokens))
        first = sum(open_call.last_tokens)
        assert sum(gaps.counts) == 0
        front.engine.say(submit, "b", [2, 3], index=0)
        front.engine.say(submit, "b", [2], index=1)
        for index in range(2):
            front.engine.end(submit, index=index)
        await call
        assert sum(gaps.counts) == 3
        # Two tokens that came together share the time that one alone took.
        assert gaps.total == pytest.approx(sum(open_call.last_tokens) - first)
