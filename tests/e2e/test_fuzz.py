"""Random requests over all fields against a whole server: each ends well or is refused by name, and nothing is left.

The echo backend answers; what must become of each request is worked out beside it (fuzz_oracle, fuzz_answers). Eight
requests are under way at once, streams and single answers.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import msgspec
import pytest
from google.protobuf.descriptor import Descriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services import tokenizer
from services.runtime.models import resolve
from services.runtime.settings import GatewaySettings, ModelSettings
from tandem.v1 import chat_pb2, common_pb2, inference_pb2, models_pb2
from tests.e2e import fuzz_requests
from tests.e2e.fuzz_answers import Answer, Heard, Verdict, check, judge
from tests.e2e.fuzz_oracle import Request, Rules
from tests.e2e.processes import Settings
from tests.e2e.serving import Serving, serving
from tests.unit.gateway.rig import failure

# Small, so that bounds are met often.
BOUNDS: dict[str, int] = {
    "max_logit_bias": 8,
    "max_allowed_token_ids": 16,
    "max_bad_words": 3,
    "max_bad_word_chars": 12,
    "max_stop_strings": 4,
    "max_stop_string_chars": 16,
    "max_stop_token_ids": 8,
    "max_constraint_bytes": 200,
    "max_choices": 4,
    "max_tools": 3,
    "max_tool_bytes": 400,
    "max_tool_calls": 2,
    "max_chat_messages": 5,
    "max_request_id_chars": 24,
    "max_tenant_chars": 8,
    "max_cache_salt_chars": 8,
    "max_n": 4,
    "max_logprobs": 5,
    "max_prompt_bytes": 2048,
}
CONTEXT_LENGTH = 512
SETTINGS: Settings = {
    "executor": {"backend": "echo", "context_length": CONTEXT_LENGTH, "num_blocks": 1025},
    "gateway": {"listen": "127.0.0.1:0", "drain_s": 1.0, **BOUNDS},
    "links": {"death_s": 30.0},
}
AT_ONCE = 8
CALL_S = 90.0


@dataclass
class Fuzz:
    """A server under random requests, what it was at the start, and one loop for all clients."""

    server: Serving
    rules: Rules
    channel: grpc.aio.Channel
    runner: asyncio.Runner
    pids: dict[str, int]
    num_sent: int = 0
    num_answered: int = 0

    def send(self, requests: Sequence[tuple[Request, bool]]) -> None:
        """All at once; each must end as its verdict says."""
        ids = [request.request_id for request, _ in requests]
        self.runner.run(self._send(requests, {name for name in ids if name and ids.count(name) > 1}))
        self.num_sent += len(requests)

    async def _send(self, requests: Sequence[tuple[Request, bool]], shared_ids: set[str]) -> None:
        work = [self._one(request, streams, request.request_id in shared_ids) for request, streams in requests]
        for problem in await asyncio.gather(*work, return_exceptions=True):
            if problem is not None:
                raise problem

    async def _one(self, request: Request, streams: bool, may_be_twin: bool) -> None:
        verdict = judge(self.rules, request)
        try:
            answer = await (self._streamed if streams else self._unary)(request)
        except grpc.aio.AioRpcError as error:
            refused = failure(error)
            names = frozenset(refused.fields)
            is_right = any(each.covers(refused.reason, names) for each in verdict.refusals)
            is_twin = may_be_twin and verdict.opens and refused.reason == "DUPLICATE_REQUEST_ID"
            assert is_right or is_twin, f"{refused}\nwhere {verdict} was due for\n{request}"
            return
        assert verdict.may_be_answered, f"answered, where {verdict} was due for\n{request}"
        self.num_answered += 1
        self._check(request, verdict, answer)

    def _check(self, request: Request, verdict: Verdict, answer: Answer) -> None:
        try:
            check(self.rules, request, verdict.prompt, answer)
        except AssertionError as error:
            raise AssertionError(f"{error}\nin {answer}\nfor {verdict} of\n{request}") from error

    async def _unary(self, request: Request) -> Answer:
        is_chat = isinstance(request, chat_pb2.ChatRequest)
        reply: Any = await self.channel.unary_unary(
            "/tandem.v1.ChatService/Chat" if is_chat else "/tandem.v1.InferenceService/Generate",
            request_serializer=type(request).SerializeToString,
            response_deserializer=(chat_pb2.ChatResponse if is_chat else inference_pb2.GenerateResponse).FromString,
        )(request, timeout=CALL_S)
        answer = Answer(prompt_scores=list(reply.prompt_logprobs), usage=reply.usage)
        parts = reply.choices if is_chat else reply.completions
        total = reply.usage.completion_tokens
        for part in parts:
            heard = Heard(list(part.token_ids), total // len(parts), list(part.logprobs), part.finish)
            answer.sequences[part.index] = heard
        return answer

    async def _streamed(self, request: Request) -> Answer:
        is_chat = isinstance(request, chat_pb2.ChatRequest)
        answer = Answer()
        chunks: Any = self.channel.unary_stream(
            "/tandem.v1.ChatService/StreamChat" if is_chat else "/tandem.v1.InferenceService/StreamGenerate",
            request_serializer=type(request).SerializeToString,
            response_deserializer=(chat_pb2.ChatChunk if is_chat else inference_pb2.GenerateChunk).FromString,
        )(request, timeout=CALL_S)
        async for chunk in chunks:
            assert answer.usage is None, "a message after the last"
            heard = answer.sequences.setdefault(chunk.index, Heard())
            assert heard.finish is None, "a message after the end of its sequence"
            heard.token_ids += chunk.token_ids
            heard.scores += chunk.logprobs
            heard.num_tokens += chunk.num_tokens
            answer.prompt_scores += chunk.prompt_logprobs
            heard.finish = chunk.finish if chunk.HasField("finish") else None
            answer.usage = chunk.usage if chunk.HasField("usage") else None
        return answer

    def check_server(self) -> None:
        """Every process is the one that was there at the start, nothing failed, and every block is free."""
        assert {name: process.pid for name, process in self.server.process.services().items()} == self.pids
        state = self.server.idle(self.server.position())
        assert state["num_free_blocks"] == state["num_blocks"]
        assert [entry for entry in self.server.entries() if entry.get("level") in ("error", "critical")] == []


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Fuzz]:
    with serving(SETTINGS) as server, asyncio.Runner() as runner:
        channel = runner.run(_open(server.address))
        asked: Any = channel.unary_unary(
            "/tandem.v1.ModelService/GetModel",
            request_serializer=models_pb2.GetModelRequest.SerializeToString,
            response_deserializer=models_pb2.GetModelResponse.FromString,
        )
        model = runner.run(_awaited(partial(asked, models_pb2.GetModelRequest(), timeout=CALL_S))).model
        rules = Rules(model, tokenizer.load(resolve(ModelSettings())), msgspec.convert(BOUNDS, GatewaySettings))
        pids = {name: process.pid for name, process in server.process.services().items()}
        yield Fuzz(server, rules, channel, runner, pids)
        runner.run(channel.close())


async def _open(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address)


async def _awaited(call: Any) -> Any:
    return await call()


REQUESTS = st.lists(st.tuples(fuzz_requests.requests(), st.booleans()), min_size=AT_ONCE, max_size=AT_ONCE)
UNHURRIED = settings(
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)


def test_requests_of_every_kind_end_as_they_must(fuzz: Fuzz) -> None:
    _run(fuzz, 304)


@pytest.mark.soak
def test_many_requests_of_every_kind_end_as_they_must(fuzz: Fuzz) -> None:
    _run(fuzz, 5000)


def _run(fuzz: Fuzz, num_requests: int) -> None:
    fuzz.num_sent = fuzz.num_answered = 0

    @settings(UNHURRIED, max_examples=num_requests // AT_ONCE, derandomize=num_requests < 1000, database=None)
    @given(requests=REQUESTS)
    def send(requests: list[tuple[Request, bool]]) -> None:
        fuzz.send(requests)

    send()
    fuzz.check_server()
    assert fuzz.num_sent >= num_requests
    assert fuzz.num_answered > fuzz.num_sent / 5, "hardly a request is right"
    print(f"{fuzz.num_sent} requests, {fuzz.num_answered} answered")


@pytest.mark.parametrize(
    ("descriptor", "names"),
    [
        (common_pb2.Sampling.DESCRIPTOR, fuzz_requests.SAMPLING.keys()),
        (common_pb2.Stopping.DESCRIPTOR, fuzz_requests.STOPPING.keys()),
        (common_pb2.Output.DESCRIPTOR, fuzz_requests.OUTPUT.keys()),
        (
            inference_pb2.GenerateRequest.DESCRIPTOR,
            {*fuzz_requests.CALL, *fuzz_requests.GENERATE, *fuzz_requests.GROUPS},
        ),
        (chat_pb2.ChatRequest.DESCRIPTOR, {*fuzz_requests.CALL, *fuzz_requests.CHAT, *fuzz_requests.GROUPS}),
    ],
    ids=lambda value: value.name if isinstance(value, Descriptor) else "",
)
def test_every_field_of_the_contract_is_drawn(descriptor: Descriptor, names: set[str]) -> None:
    assert {field.name for field in descriptor.fields} == set(names)
