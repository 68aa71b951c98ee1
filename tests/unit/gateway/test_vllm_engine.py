"""VllmEngine as smg meets it: a real listener, its generated stub, and a scripted engine behind the gateway."""

import asyncio
import contextlib
import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import grpc
import msgspec
import pytest
import pytest_asyncio

from gateway.engine import Phase
from services.tokenizer import Tokenizer
from services.wire import columns
from services.wire.messages import (
    Candidate,
    ControlReply,
    ControlVerb,
    Draining,
    FailureReason,
    FinishReason,
    Load,
    TextDelta,
    TokenLogprobs,
)
from tests.unit.gateway.rig import SETTINGS, eventually, read, rest, running
from tests.unit.gateway.vllm_rig import LISTENING, Worker, pb, working

common = pytest.importorskip("smg_grpc_proto.generated.common_pb2")

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOGPROBS = TokenLogprobs((Candidate(5, -0.5, 2, b"x"), Candidate(9, -0.25, 1, b"y"), Candidate(7, -3.0, 3, b"z")))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_worker(tokenizer: Tokenizer) -> AsyncIterator[Worker]:
    async with working(tokenizer) as worker:
        yield worker


@pytest_asyncio.fixture(loop_scope="session")
async def worker(shared_worker: Worker) -> Worker:
    await shared_worker.front.settle()
    return shared_worker


async def test_a_stream_is_chunks_with_their_own_counts_and_a_complete(worker: Worker) -> None:
    call = worker.generate(max_tokens=9)
    engine = worker.front.engine
    submit = await engine.submit()
    engine.say(submit, "a", [5, 6])
    first = (await read(call)).chunk
    engine.say(submit, "b", [7])
    engine.end(submit, FinishReason.LENGTH)
    *middle, last = await rest(call)
    assert (list(first.token_ids), first.prompt_tokens, first.completion_tokens, first.index) == ([5, 6], 3, 2, 0)
    assert [list(reply.chunk.token_ids) for reply in middle] == [[7]]
    assert (last.complete.finish_reason, last.complete.cached_tokens, last.complete.prompt_tokens) == ("length", 1, 3)
    assert last.complete.WhichOneof("matched_stop") is None


async def test_a_single_answer_is_one_complete_for_each_sequence(worker: Worker) -> None:
    call = worker.generate(stream=False, n=2)
    engine = worker.front.engine
    submit = await engine.submit()
    assert submit.n == 2
    for index in (1, 0):
        engine.say(submit, "a", [index, 6], index=index)
        engine.end(submit, FinishReason.STOP, index=index, matched_token=2)
    replies = [reply.complete for reply in await rest(call)]
    assert [(reply.index, list(reply.output_ids), reply.completion_tokens) for reply in replies] == [
        (0, [0, 6], 2),
        (1, [1, 6], 2),
    ]
    # The model's own end is no stop that somebody asked for.
    assert {(reply.finish_reason, reply.WhichOneof("matched_stop")) for reply in replies} == {("stop", None)}


@pytest.mark.parametrize(
    ("end", "matched"),
    [
        ({"matched_stop": "END"}, ("matched_stop_str", "END")),
        ({"matched_token": 77}, ("matched_token_id", 77)),
        ({"matched_token": 1}, ("matched_stop_str", "<|im_start|>")),
    ],
)
async def test_what_stopped_it_is_told(worker: Worker, end: dict[str, Any], matched: tuple[str, Any]) -> None:
    call = worker.generate(stream=False, stop=["END", "<|im_start|>"], stop_token_ids=[77])
    engine = worker.front.engine
    submit = await engine.submit()
    assert submit.stopping.stop_strings == ("END", "<|im_start|>")
    assert columns.unpack(submit.stopping.stop_token_ids).tolist() == [1, 2, 77]
    engine.say(submit, "a", [5])
    engine.end(submit, FinishReason.STOP, **end)
    complete = (await rest(call))[0].complete
    assert (complete.WhichOneof("matched_stop"), getattr(complete, matched[0])) == matched


@pytest.mark.parametrize("stream", [True, False])
async def test_logprobs_are_the_chosen_one_and_the_likeliest(worker: Worker, stream: bool) -> None:
    call = worker.generate(stream=stream, logprobs=2)
    engine = worker.front.engine
    submit = await engine.submit()
    assert submit.sampling.logprobs == 2
    engine.say(submit, "a", [5], logprobs=[LOGPROBS])
    engine.end(submit)
    first = (await rest(call))[0]
    told = first.chunk.output_logprobs if stream else first.complete.output_logprobs
    assert (list(told.token_logprobs), list(told.token_ids)) == ([-0.5], [5])
    assert [(list(top.values), list(top.token_ids)) for top in told.top_logprobs] == [([-0.25, -0.5], [9, 5])]


@pytest.mark.parametrize("stream", [True, False])
async def test_abort_ends_the_stream_at_once_with_a_complete_that_says_so(worker: Worker, stream: bool) -> None:
    call = worker.generate(stream=stream, n=2, request_id="r1")
    engine = worker.front.engine
    submit = await engine.submit()
    engine.say(submit, "a", [5], index=1)
    engine.end(submit, index=1)
    await worker.stub.Abort(pb.AbortRequest(request_ids=["r1", "nobody"]))
    assert (await engine.cancel()).identity == submit.identity
    completes = [reply.complete for reply in await rest(call) if reply.WhichOneof("response") == "complete"]
    reasons = {complete.index: complete.finish_reason for complete in completes}
    assert reasons[0] == "abort"
    assert sorted(complete.index for complete in completes) == [0, 1]
    assert await call.code() is grpc.StatusCode.OK


async def test_a_client_that_goes_is_cancelled(worker: Worker) -> None:
    call = worker.generate(stream=False)
    submit = await worker.front.engine.submit()
    call.cancel()
    assert (await worker.front.engine.cancel()).identity == submit.identity


@pytest.mark.parametrize(
    ("failure", "code", "is_marked"),
    [
        (FailureReason.CONSTRAINT_FAILED, grpc.StatusCode.FAILED_PRECONDITION, True),
        (FailureReason.QUEUE_FULL, grpc.StatusCode.RESOURCE_EXHAUSTED, False),
        (FailureReason.POISONED_ROW, grpc.StatusCode.INTERNAL, False),
    ],
)
async def test_a_failure_has_the_status_that_smg_acts_upon(
    worker: Worker, failure: FailureReason, code: grpc.StatusCode, is_marked: bool
) -> None:
    call = worker.generate()
    submit = await worker.front.engine.submit()
    worker.front.engine.fail(submit, failure)
    assert await call.code() is code
    trailers = dict(await call.trailing_metadata())
    assert (trailers.get("smg-constraint-failed") == "engine") is is_marked


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"logprobs": -1}, "sampling_params.logprobs"),
        ({"structural_tag": "x"}, "sampling_params.structural_tag"),
        ({"n": 99}, "sampling.n"),
        ({"temperature": -1.0}, "sampling.temperature"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(worker: Worker, params: dict[str, Any], field: str) -> None:
    call = worker.generate(**params)
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await call.details()).startswith(f"{field}: ")


async def test_inputs_of_other_workers_are_refused_by_name(worker: Worker) -> None:
    request = pb.GenerateRequest(
        text="a", kv_transfer_params_json="{}", data_parallel_rank=1, media_refs=pb.MediaRefs(items=[pb.MediaRef()])
    )
    call = worker.stub.Generate(request, timeout=10)
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    for field in ("kv_transfer_params_json", "data_parallel_rank", "media_refs"):
        assert field in await call.details()


async def test_the_model_and_the_server_introduce_themselves(worker: Worker) -> None:
    model = await worker.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (model.served_model_name, model.is_generation, model.max_context_length) == ("smol", True, 512)
    assert (model.model_type, list(model.architectures)) == ("llama", ["LlamaForCausalLM"])
    assert (model.vocab_size, list(model.eos_token_ids)) == (49152, [2])
    server = await worker.stub.GetServerInfo(pb.GetServerInfoRequest())
    assert (server.data_parallel_size, server.block_size, server.max_num_seqs) == (1, 16, 8)
    health = await worker.stub.HealthCheck(pb.HealthCheckRequest())
    assert (health.healthy, health.message) == (True, "ready")


async def test_the_tokenizer_is_a_zip_with_its_digest_on_the_last_chunk(worker: Worker) -> None:
    chunks = [chunk async for chunk in worker.stub.GetTokenizer(common.GetTokenizerRequest())]
    packed = b"".join(chunk.data for chunk in chunks)
    assert [chunk.sha256 for chunk in chunks[:-1]] == [""] * (len(chunks) - 1)
    assert chunks[-1].sha256 == hashlib.sha256(packed).hexdigest()
    assert max(len(chunk.data) for chunk in chunks) <= 64 * 1024
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert {"tokenizer.json", "tokenizer_config.json", "config.json"} <= set(archive.namelist())
        assert json.loads(archive.read("config.json"))["max_position_embeddings"] == 512


async def test_the_load_is_told_when_asked_and_pushed_when_it_changes(worker: Worker) -> None:
    engine = worker.front.engine
    stream = worker.stub.SubscribeKvEvents(common.SubscribeKvEventsRequest(load_records_before_first_batch=True))
    first = await read(stream)
    assert (first.sequence_number, first.load.load_only, list(first.events)) == (0, True, [])
    engine.tell(Load(num_waiting=3, num_running=2, num_free_blocks=21, num_blocks=63, drain_rate=1.0))
    while (record := await read(stream)).load.running_requests != 2:
        assert record.load.sample > 0
    assert (record.load.waiting_requests, record.load.max_running_requests) == (3, 8)
    assert record.load.token_usage == pytest.approx(42 / 63)
    stream.cancel()
    (load,) = (await worker.stub.GetLoads(pb.GetLoadsRequest())).loads
    assert (load.num_running_reqs, load.num_waiting_reqs, load.num_total_reqs) == (2, 3, 5)
    assert (load.num_used_tokens, load.max_total_num_tokens) == (42 * 16, 63 * 16)


async def test_subscribers_are_bounded(tokenizer: Tokenizer) -> None:
    async with working(tokenizer, settings=msgspec.structs.replace(LISTENING, max_load_watchers=1)) as worker:
        first = worker.stub.SubscribeKvEvents(common.SubscribeKvEventsRequest())
        await read(first)
        second = worker.stub.SubscribeKvEvents(common.SubscribeKvEventsRequest())
        assert await second.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()
        async with asyncio.timeout(5):
            while True:  # until the server has heard that the first is gone
                third = worker.stub.SubscribeKvEvents(common.SubscribeKvEventsRequest())
                with contextlib.suppress(grpc.aio.AioRpcError):
                    assert (await read(third)).load.load_only
                    break


async def test_prompts_without_a_token_count_as_pending(worker: Worker) -> None:
    call = worker.generate(ids=[4] * 50)
    submit = await worker.front.engine.submit()
    assert (await worker.stub.GetLoads(pb.GetLoadsRequest())).loads[0].num_waiting_uncached_tokens == 50
    worker.front.engine.say(submit, "a", [5])
    await read(call)
    assert (await worker.stub.GetLoads(pb.GetLoadsRequest())).loads[0].num_waiting_uncached_tokens == 0
    call.cancel()


async def test_events_cannot_be_resumed_and_the_rest_is_not_served(worker: Worker) -> None:
    resumed = worker.stub.SubscribeKvEvents(common.SubscribeKvEventsRequest(start_sequence_number=1))
    assert await resumed.code() is grpc.StatusCode.OUT_OF_RANGE
    unserved: tuple[Any, ...] = (
        worker.stub.Embed(pb.EmbedRequest()),
        worker.stub.StartProfile(common.StartProfileRequest()),
        worker.stub.StopProfile(common.StopProfileRequest()),
    )
    for call in unserved:
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_cache_is_flushed_by_the_scheduler(worker: Worker) -> None:
    flushing = asyncio.ensure_future(worker.stub.FlushCache(common.FlushCacheRequest()))
    order = await worker.front.engine.order()
    assert order.verb is ControlVerb.FLUSH_CACHE
    worker.front.engine.tell(ControlReply(order.number, is_done=True, num_affected=7))
    reply = await flushing
    assert (reply.success, reply.message) == (True, "7 blocks")


@pytest.mark.parametrize("stream", [True, False])
async def test_logprobs_of_the_prompt_come_with_the_first_word(worker: Worker, stream: bool) -> None:
    call = worker.generate(stream=stream, prompt_logprobs=1)
    engine = worker.front.engine
    submit = await engine.submit()
    delta = TextDelta(
        submit.identity.request,
        submit.identity.incarnation,
        0,
        "a",
        columns.pack([5]),
        prompt_logprobs=(None, LOGPROBS, LOGPROBS),
    )
    engine.batch(deltas=(delta,))
    engine.end(submit)
    first = (await rest(call))[0]
    told = first.chunk.input_logprobs if stream else first.complete.input_logprobs
    assert list(told.token_ids) == [1, 2, 3]
    assert [each.value if each.HasField("value") else None for each in told.token_logprobs] == [None, -0.5, -0.5]
    assert [list(top.token_ids) for top in told.top_logprobs] == [[], [9], [9]]


async def test_the_listener_serves_nothing_of_the_public_one(worker: Worker) -> None:
    call: Any = worker.channel.unary_unary("/tandem.v1.ModelService/ListModels")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_an_engine_that_is_not_there_yet_is_not_healthy_and_one_that_drains_ends_its_records(
    tokenizer: Tokenizer,
) -> None:
    async with working(tokenizer, is_ready=False) as worker:
        assert not (await worker.stub.HealthCheck(pb.HealthCheckRequest())).healthy
        assert await worker.generate().code() is grpc.StatusCode.UNAVAILABLE
        worker.front.engine.ready()
        await eventually(lambda: worker.front.server.gateway.engine.phase is Phase.READY)
        stream = worker.stub.SubscribeKvEvents(common.SubscribeKvEventsRequest())
        await read(stream)
        worker.front.engine.tell(Draining())
        await eventually(lambda: worker.front.server.gateway.engine.phase is Phase.DRAINING)
        assert (await worker.stub.HealthCheck(pb.HealthCheckRequest())).message == "draining"
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE


async def test_without_the_setting_there_is_no_such_listener(tokenizer: Tokenizer) -> None:
    async with running(tokenizer) as front:
        assert front.server.vllm_address == ""


async def test_a_port_that_is_taken_fails_at_once(tokenizer: Tokenizer, worker: Worker) -> None:
    settings = msgspec.structs.replace(SETTINGS, vllm_listen=worker.front.server.vllm_address)
    with pytest.raises(RuntimeError, match=r"[Ff]ailed to bind"):
        async with asyncio.timeout(5), running(tokenizer, settings, is_ready=False):
            pass
