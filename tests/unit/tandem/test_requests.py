"""Requests from keyword arguments: each option in its place, and what the wire cannot carry refused by name."""

import json
from collections.abc import Mapping
from typing import Any, get_type_hints

import grpc
import pytest

from tandem import errors, requests
from tandem.options import ChatOptions, Options
from tandem.results import Completion, Finish
from tandem.tool_calls import ToolCall, ToolCallDelta
from tandem.v1 import chat_pb2, common_pb2, inference_pb2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"top_k": 2**31}, "top_k"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop": ["\ud800"]}, "stop"),
        ({"tenant": "\ud83d"}, "tenant"),
    ],
)
def test_what_the_wire_cannot_carry_is_named(options: Any, field: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        requests.generate_request("x", options)
    assert list(caught.value.fields) == [field]
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_prompts_and_roles_that_the_wire_cannot_carry_are_named() -> None:
    for prompt in ("\ud83d", [-1]):
        with pytest.raises(errors.InvalidRequest):
            requests.generate_request(prompt, {})
    with pytest.raises(errors.InvalidRequest) as caught:
        requests.chat_request([{"role": "wizard", "content": "x"}], {})
    assert list(caught.value.fields) == ["messages[0].role"]


def test_options_go_where_they_belong_and_absent_ones_stay_absent() -> None:
    request = requests.generate_request("x", {"temperature": 0.0, "max_tokens": None, "tenant": "t", "logprobs": 0})
    assert request.sampling.HasField("temperature") and not request.HasField("stopping")
    assert (request.tenant, request.output.logprobs, request.output.HasField("logprobs")) == ("t", 0, True)
    assert not request.HasField("request_id")


def test_an_option_that_does_not_exist_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="temprature"):
        requests.generate_request("x", {"temprature": 1.0})  # type: ignore[typeddict-unknown-key]


class Person:
    """What knows its own schema, as classes of pydantic do."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "properties": {"name": {"type": "string"}}}


SCHEMA = Person.model_json_schema()


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA), Person, Person()])
def test_a_schema_may_be_a_mapping_a_text_or_a_class(schema: Any) -> None:
    assert json.loads(requests.generate_request("x", {"json_schema": schema}).sampling.json_schema) == SCHEMA


def test_every_knob_of_sampling_has_its_place() -> None:
    options: Options = {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.0,
        "frequency_penalty": -1.0,
        "logit_bias": {5: 1.5, 0: -100},
        "allowed_token_ids": range(3),
        "bad_words": ("a", "b"),
        "choice": ["x", "y"],
        "prompt_logprobs": 0,
        "echo": True,
        "timeout_ms": 5,
        "truncate_prompt_tokens": 6,
        "cache_salt": "s",
    }
    request = requests.generate_request("x", options)
    sampling = request.sampling
    assert (sampling.repetition_penalty, sampling.frequency_penalty) == (1.2, -1.0)
    assert sampling.HasField("presence_penalty")
    assert dict(sampling.logit_bias) == {5: 1.5, 0: -100.0}
    assert (list(sampling.allowed_token_ids), list(sampling.bad_words)) == ([0, 1, 2], ["a", "b"])
    assert (sampling.WhichOneof("constraint"), list(sampling.choice.texts)) == ("choice", ["x", "y"])
    assert request.output.HasField("prompt_logprobs") and request.output.echo
    assert (request.timeout_ms, request.truncate_prompt_tokens, request.cache_salt) == (5, 6, "s")


def test_an_output_keeps_to_one_constraint() -> None:
    with pytest.raises(errors.InvalidRequest, match="beside json_object"):
        requests.generate_request("x", {"regex": "a", "json_object": True})
    request = requests.generate_request("x", {"grammar": "g", "json_object": False})
    assert request.sampling.WhichOneof("constraint") == "grammar"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"json_schema": {"a": {1, 2}}}, "json_schema"),
        ({"json_schema": {"a": float("nan")}}, "json_schema"),
        ({"tools": [{"name": "\ud800"}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "parameters": {"a": object()}}]}, "tools[0].parameters"),
        ({"tools": [{"name": 5}]}, "tools[0].name"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
    ],
)
def test_what_the_wire_cannot_carry_of_a_conversation_is_named(options: Any, field: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        requests.chat_request([{"role": "user", "content": "x"}], options)
    assert list(caught.value.fields) == [field]


def test_tools_are_read_in_our_words_and_in_openais() -> None:
    plain = {"name": "f", "description": "does", "parameters": SCHEMA}
    tools: list[Mapping[str, Any]] = [plain, {"type": "function", "function": {**plain, "parameters": Person}}]
    ours, theirs = requests.chat_request([{"role": "user", "content": "x"}], {"tools": tools}).tools
    assert ours == theirs == chat_pb2.Tool(name="f", description="does", parameters=json.dumps(SCHEMA))
    (bare,) = requests.chat_request([{"role": "user", "content": "x"}], {"tools": [{"name": "g"}]}).tools
    assert not (bare.HasField("description") or bare.HasField("parameters"))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", chat_pb2.ToolChoice(mode=chat_pb2.TOOL_MODE_AUTO)),
        ("none", chat_pb2.ToolChoice(mode=chat_pb2.TOOL_MODE_NONE)),
        ("required", chat_pb2.ToolChoice(mode=chat_pb2.TOOL_MODE_REQUIRED)),
        ("f", chat_pb2.ToolChoice(name="f")),
        ({"name": "auto"}, chat_pb2.ToolChoice(name="auto")),
        ({"type": "function", "function": {"name": "f"}}, chat_pb2.ToolChoice(name="f")),
    ],
)
def test_tool_choices(choice: Any, expected: chat_pb2.ToolChoice) -> None:
    request = requests.chat_request([{"role": "user", "content": "x"}], {"tool_choice": choice})
    assert request.tool_choice == expected


def test_a_conversation_with_calls_and_answers_goes_there_and_back() -> None:
    call = ToolCall("c1", "f", '{"a": 1}')
    completion = Completion(0, "I look.", (), (), Finish("tool_calls"), (call,))
    openais = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    theirs = {"role": "assistant", "content": "I look.", "tool_calls": [openais]}
    ours = {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "c1", "name": "f", "arguments": {"a": 1}}]}
    for message in (completion.message, theirs, ours):
        request = requests.chat_request([{"role": "user", "content": "x"}, message, call.answered("42")], {})
        assert request.messages[1].tool_calls[0] == chat_pb2.ToolCall(id="c1", name="f", arguments='{"a": 1}')
        assert request.messages[2] == chat_pb2.ChatMessage(role=chat_pb2.ROLE_TOOL, content="42", tool_call_id="c1")
    assert call.parsed() == {"a": 1}
    with pytest.raises(ValueError, match="no JSON object"):
        ToolCall("c", "f", "[]").parsed()


def test_pieces_of_calls_are_joined() -> None:
    pieces = [(0, "c0", "f", ""), (0, "", "", "{"), (0, "", "", "}"), (1, "c1", "g", "{}")]
    joined = ToolCall.joined(ToolCallDelta(*piece) for piece in pieces)
    assert joined == (ToolCall("c0", "f", "{}"), ToolCall("c1", "g", "{}"))


def test_every_option_is_described_and_exists_in_the_contract() -> None:
    groups = (common_pb2.Sampling, common_pb2.Stopping, common_pb2.Output)
    knobs = {field.name for group in groups for field in group.DESCRIPTOR.fields}
    for options, request in ((Options, inference_pb2.GenerateRequest), (ChatOptions, chat_pb2.ChatRequest)):
        spoken = {"sampling", "stopping", "output", "text", "token_ids", "messages"}
        expected = knobs | {field.name for field in request.DESCRIPTOR.fields} - spoken
        names = get_type_hints(options).keys()
        assert names == expected
        described = (Options.__doc__ or "") + (ChatOptions.__doc__ or "")
        assert [name for name in names if f"- {name}: " not in described] == []
