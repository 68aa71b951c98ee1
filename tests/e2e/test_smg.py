"""smg in front of Tandem: OpenAI's, Anthropic's and the Responses HTTP interfaces, over several engines.

Two echo engines serve the model "echo": what they say is what smg's tokenizer and template made of the request. "slow"
takes its time for a token; "smol" is the real model.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import Any

import pytest

from tandem import Client
from tests.e2e.processes import Settings, server
from tests.e2e.serving import Serving
from tests.e2e.smg import Reply, Smg, fleet, smg, vllm_address, worker
from tests.ports import free_port

if find_spec("smg") is None or find_spec("smg_grpc_proto") is None:
    pytest.skip("needs smg and smg-grpc-proto, as installed by the extra dev", allow_module_level=True)

LINKS: Settings = {"links": {"death_s": 30.0}}
EXECUTOR = {"backend": "echo", "context_length": 512, "num_blocks": 129}
ECHO: Settings = {**LINKS, "executor": {**EXECUTOR, "step_fixed_us": 1000.0}}
SLOW: Settings = {**LINKS, "model": {"name": "slow"}, "executor": {**EXECUTOR, "step_fixed_us": 400_000.0}}
SMOL: Settings = {**LINKS, "model": {"name": "smol"}, "executor": {"num_blocks": 129}}

HI = [{"role": "user", "content": "Say hi"}]
CAPITAL = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
PARIS = "The capital of France is Paris."
PROMPT = "one two three four five"


@dataclass
class Fleet:
    """smg and what stands behind it."""

    smg: Smg
    echo: list[Serving]
    slow: Serving
    port: int  # where the second echo engine listens for smg, and whoever takes its place

    def chat(self, **body: Any) -> Reply:
        """A chat completion of the echo model, greedy."""
        return self.smg.post("/v1/chat/completions", **{"model": "echo", "messages": HI, "temperature": 0, **body})

    def complete(self, **body: Any) -> Reply:
        """A completion of the echo model."""
        return self.smg.post("/v1/completions", **{"model": "echo", "prompt": PROMPT, "max_tokens": 5, **body})


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    port = free_port()
    with ExitStack() as stack:
        one, two, slow, smol = stack.enter_context(fleet(worker(ECHO), worker(ECHO, port), worker(SLOW), worker(SMOL)))
        addresses = [vllm_address(each.process) for each in (one, two, slow, smol)]
        log = tmp_path_factory.mktemp("smg") / "log"
        running = stack.enter_context(smg(addresses, log, "--policy", "round_robin"))
        yield Fleet(running, [one, two], slow, port)


def num_finished(serving: Serving, start: int = 0) -> int:
    return sum(entry["event"] == "call.ended" and "request_id" in entry for entry in serving.entries(start))


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    """What one sequence of a streamed answer says."""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content") or "" for choice in choices)


def test_the_conversation_that_smg_tokenizes_is_the_one_that_tandem_makes(behind: Fleet) -> None:
    """The same words through smg and straight to the server make the same prompt, and the same text of it."""
    content = "Say: naïve 漢字 👩‍👧 007   x1234 please"
    messages = [{"role": "user", "content": content}]
    through = behind.chat(messages=messages, max_tokens=200, ignore_eos=True, stop=["please"])
    with Client(behind.echo[0].address) as client:
        direct = client.chat(messages, max_tokens=200, ignore_eos=True, stop=["please"], temperature=0)
    assert through.status == 200, through.body
    assert through.body["choices"][0]["message"]["content"] == direct.text
    assert content.removesuffix("please") in direct.text
    assert through.body["usage"]["prompt_tokens"] == direct.usage.prompt_tokens
    assert through.body["usage"]["completion_tokens"] == direct.usage.completion_tokens


def test_a_chat_completion_plain_and_streamed(behind: Fleet) -> None:
    plain = behind.chat(max_tokens=12)
    assert (plain.status, plain.body["choices"][0]["finish_reason"]) == (200, "length")
    said = plain.body["choices"][0]["message"]["content"]
    assert said.startswith("system\nYou are a helpful AI")
    events = behind.smg.events(
        "/v1/chat/completions",
        model="echo",
        messages=HI,
        max_tokens=12,
        temperature=0,
        stream_options={"include_usage": True},
    )
    assert text_of(events) == said
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert reasons == ["length"]
    assert events[-1]["usage"]["completion_tokens"] == plain.body["usage"]["completion_tokens"] == 12


def test_a_completion_plain_and_streamed(behind: Fleet) -> None:
    plain = behind.complete()
    assert plain.body["choices"][0]["text"] == PROMPT
    assert plain.body["usage"]["completion_tokens"] == plain.body["usage"]["prompt_tokens"] == 5
    assert text_of(behind.smg.events("/v1/completions", model="echo", prompt=PROMPT, max_tokens=5)) == PROMPT


@pytest.mark.parametrize("is_stream", [False, True])
def test_two_sequences(behind: Fleet, is_stream: bool) -> None:
    body = {"model": "echo", "prompt": PROMPT, "max_tokens": 7, "n": 2}
    if is_stream:
        events = behind.smg.events("/v1/completions", **body)
        said = [text_of(events, index) for index in (0, 1)]
    else:
        choices = behind.smg.post("/v1/completions", **body).body["choices"]
        said = [choice["text"] for choice in sorted(choices, key=lambda choice: int(choice["index"]))]
    assert said == [f"{PROMPT}one two"] * 2


@pytest.mark.parametrize("is_stream", [False, True])
def test_logprobs(behind: Fleet, is_stream: bool) -> None:
    body = {"model": "smol", "messages": CAPITAL, "temperature": 0, "max_tokens": 3, "logprobs": True}
    body["top_logprobs"] = 2
    if is_stream:
        events = behind.smg.events("/v1/chat/completions", **body)
        parts = [choice["logprobs"] for event in events for choice in event["choices"] if choice.get("logprobs")]
        content = [entry for part in parts for entry in part["content"]]
    else:
        content = behind.smg.post("/v1/chat/completions", **body).body["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["The", " capital", " of"]
    for entry in content:
        first, second = entry["top_logprobs"]
        assert (first["token"], first["logprob"]) == (entry["token"], entry["logprob"])
        assert second["logprob"] <= first["logprob"] <= 0


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_stop_string_ends_the_text_and_the_work(behind: Fleet, is_stream: bool) -> None:
    body = {"model": "echo", "prompt": PROMPT, "max_tokens": 400, "stop": ["three"]}
    if is_stream:
        events = behind.smg.events("/v1/completions", **body)
        said = text_of(events)
        reasons = {choice["finish_reason"] for event in events for choice in event["choices"]} - {None}
    else:
        reply = behind.smg.post("/v1/completions", **body).body
        said, reasons = reply["choices"][0]["text"], {reply["choices"][0]["finish_reason"]}
        assert reply["usage"]["completion_tokens"] == 3
    assert (said, reasons) == ("one two ", {"stop"})


def test_the_model_answers_through_every_interface(behind: Fleet) -> None:
    chat = behind.chat(model="smol", messages=CAPITAL, max_tokens=20)
    assert chat.body["choices"][0]["message"]["content"] == PARIS
    messages = behind.smg.post("/v1/messages", model="smol", messages=CAPITAL, temperature=0, max_tokens=20)
    assert (messages.body["content"][0]["text"], messages.body["stop_reason"]) == (PARIS, "end_turn")
    response = behind.smg.post(
        "/v1/responses", model="smol", input=CAPITAL[0]["content"], temperature=0, max_output_tokens=20
    )
    assert response.body["output"][0]["content"][0]["text"] == PARIS


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


FORECAST = [{"role": "user", "content": "What will the weather be in Rome for three days?"}]
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_tool_that_must_be_called_is_called(behind: Fleet, choice: Any) -> None:
    reply = behind.chat(model="smol", messages=FORECAST, max_tokens=200, tools=[WEATHER], tool_choice=choice)
    assert reply.status == 200, reply.body
    (answer,) = reply.body["choices"]
    assert answer["finish_reason"] == "tool_calls", reply.body
    call = answer["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("weather", {"city": "Rome", "days": 3})


def test_a_tool_call_is_streamed(behind: Fleet) -> None:
    body = {"model": "smol", "messages": FORECAST, "temperature": 0, "max_tokens": 200, "tools": [WEATHER]}
    events = behind.smg.events("/v1/chat/completions", tool_choice=NAMED, **body)
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    pieces = [call["function"] for delta in deltas for call in delta.get("tool_calls") or []]
    assert [piece["name"] for piece in pieces if piece.get("name")] == ["weather"]
    arguments = json.loads("".join(piece.get("arguments") or "" for piece in pieces))
    assert arguments == {"city": "Rome", "days": 3}


def test_an_answer_keeps_to_its_schema(behind: Fleet) -> None:
    schema = {
        "type": "object",
        "properties": {"capital": {"enum": ["Paris", "Rome"]}},
        "required": ["capital"],
        "additionalProperties": False,
    }
    reply = behind.chat(
        model="smol",
        messages=CAPITAL,
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
    )
    assert reply.status == 200, reply.body
    assert json.loads(reply.body["choices"][0]["message"]["content"])["capital"] in ("Paris", "Rome")


def test_what_is_wrong_is_an_error_of_the_client(behind: Fleet) -> None:
    assert behind.complete(prompt="x " * 600).body["error"]["code"] == "context_length_exceeded"
    assert behind.complete(model="nobody").status == 404
    assert behind.complete(n=99).status == 400


def test_max_tokens_is_a_wish(behind: Fleet) -> None:
    reply = behind.complete(max_tokens=100_000)
    assert (reply.body["usage"]["total_tokens"], reply.body["choices"][0]["finish_reason"]) == (512, "length")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_goes_frees_its_blocks_within_two_steps(behind: Fleet, is_stream: bool) -> None:
    start = behind.slow.position()
    before = behind.slow.idle(start)
    body = {"model": "slow", "prompt": PROMPT * 4, "max_tokens": 400, "ignore_eos": True}
    if is_stream:
        with closing(behind.smg.stream("/v1/completions", **body)) as stream:
            assert len(list(islice(stream, 2))) == 2
    else:
        behind.smg.send_and_go("/v1/completions", after_s=1.0, **body)
    left = behind.slow.told(lambda entry: entry["event"] == "call.ended" and "request_id" in entry, start)
    after = behind.slow.idle(behind.slow.position())
    assert after["num_free_blocks"] == after["num_blocks"]
    # A step for each token that had come when the client was gone, and at most the two that were under way.
    assert 0 < left["num_output_tokens"] < 100
    assert after["num_steps"] - before["num_steps"] <= left["num_output_tokens"] + 2


def test_both_engines_work_and_one_that_is_killed_comes_back(behind: Fleet) -> None:
    killed = behind.echo[1].process
    if killed.is_running:  # another test may have killed it
        starts = [each.position() for each in behind.echo]
        for _ in range(6):
            assert behind.complete().status == 200
        assert [num_finished(each, start) for each, start in zip(behind.echo, starts, strict=True)] == [3, 3]
        killed.services()["gateway"].kill()
        assert killed.wait_end() == 1
        killed.wait_alone()
    replies = [behind.complete() for _ in range(6)]
    assert [reply.status for reply in replies] == [200] * 6
    with server(worker(ECHO, behind.port), "--log-level", "debug") as process:
        back = Serving(process.wait_ready(), process)
        deadline = time.monotonic() + 20
        while not num_finished(back):
            assert behind.complete().status == 200
            assert time.monotonic() < deadline, behind.smg.log.read_text()[-3000:]
        process.stop()


def test_an_idle_engine_stays_in_view_and_its_load_follows_it(behind: Fleet) -> None:
    deadline = time.monotonic() + 20
    while True:
        (seen,) = [each for each in behind.smg.get("/workers").body["workers"] if each["model_id"] == "smol"]
        assert (seen["is_healthy"], seen["status"], seen["load"]) == (True, "ready", 0)
        if "engine_load" in seen:  # not yet, where smg has only just found the engine
            (load,) = seen["engine_load"]["loads"]
            assert load["max_total_num_tokens"] == 128 * 16
            if not load["num_running_reqs"]:
                return
        assert time.monotonic() < deadline, "the engine's records do not follow it"
        time.sleep(0.2)


@pytest.mark.soak
def test_an_engine_that_dies_under_load_costs_no_plain_answer(behind: Fleet) -> None:
    """Sixteen clients ask all the while; smg asks elsewhere for whatever the dead engine had not answered."""
    killed = behind.echo[1].process

    def client(number: int) -> list[tuple[int, str]]:
        replies = [behind.complete(prompt=f"{number} {turn} of many", max_tokens=40) for turn in range(60)]
        return [(reply.status, reply.body["choices"][0]["finish_reason"]) for reply in replies]

    with ThreadPoolExecutor(16) as threads:
        clients = [threads.submit(client, number) for number in range(16)]
        time.sleep(1.0)
        if killed.is_running:
            killed.services()["gateway"].kill()
            assert killed.wait_end() == 1
        answers = [answer for each in clients for answer in each.result()]
    assert answers == [(200, "length")] * (16 * 60)
    killed.wait_alone()
    state = behind.echo[0].idle(behind.echo[0].position())
    assert state["num_free_blocks"] == state["num_blocks"]
