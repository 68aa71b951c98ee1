"""Tools and conversations that use them: what the template is shown, and what an answer must be."""

import json
from typing import Any

import jsonschema
import pytest

from gateway.conversations import INSTRUCTION, for_template
from gateway.errors import Violation
from gateway.tools import NO_TOOLS, Tools, read_tools
from services.runtime.settings import GatewaySettings
from tandem.v1 import chat_pb2 as pb

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/node"}, "sample": {"const": {"$ref": "#/kept"}}},
    "required": ["root"],
    "$defs": {
        "node": {"type": "object", "properties": {"left": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
    },
}
WEATHER = pb.Tool(name="weather", description="Of a city.", parameters=json.dumps(CITY))
PLANT = pb.Tool(name="plant", parameters=json.dumps(TREE))
TIME = pb.Tool(name="time")


def read(**fields: Any) -> Tools:
    violations: list[Violation] = []
    tools = read_tools(pb.ChatRequest(**fields), violations, GatewaySettings(max_tool_calls=3))
    assert violations == []
    return tools


def schema_of(mode: "pb.ToolMode | str", *tools: pb.Tool, **fields: Any) -> Any:
    choice = pb.ToolChoice(name=mode) if isinstance(mode, str) else pb.ToolChoice(mode=mode)
    schema = read(tools=tools, tool_choice=choice, **fields).schema
    assert schema is not None
    jsonschema.Draft202012Validator.check_schema(json.loads(schema))
    return jsonschema.Draft202012Validator(json.loads(schema))


def test_the_model_is_shown_tools_as_the_field_writes_them() -> None:
    tools = read(tools=[WEATHER, TIME])
    assert tools.specs == (
        {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": CITY}},
        {
            "type": "function",
            "function": {
                "name": "time",
                "description": "",
                "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
            },
        },
    )
    assert tools.names == {"weather", "time"} and (tools.max_calls, tools.schema) == (3, None)
    assert read(tools=[TIME], parallel_tool_calls=False).max_calls == 1


@pytest.mark.parametrize("choice", [None, pb.ToolChoice(), pb.ToolChoice(mode=pb.TOOL_MODE_UNSPECIFIED)])
def test_auto_is_the_default(choice: pb.ToolChoice | None) -> None:
    assert read(tools=[TIME], tool_choice=choice) == read(
        tools=[TIME], tool_choice=pb.ToolChoice(mode=pb.TOOL_MODE_AUTO)
    )


def test_none_shows_no_tools() -> None:
    assert read(tools=[TIME], tool_choice=pb.ToolChoice(mode=pb.TOOL_MODE_NONE)) == NO_TOOLS
    assert read() == NO_TOOLS


def test_required_is_an_array_of_calls_that_keep_to_their_schemas() -> None:
    schema = schema_of(pb.TOOL_MODE_REQUIRED, WEATHER, TIME)
    weather = {"name": "weather", "arguments": {"city": "Rom"}}
    time: dict[str, object] = {"name": "time", "arguments": {}}
    for right in ([weather], [time], [time, weather, time]):
        assert schema.is_valid(right)
    wrong: list[object] = [
        [],
        weather,
        [time] * 4,
        [{"name": "weather", "arguments": {}}],
        [{"name": "time", "arguments": {"x": 1}}],
        [{"name": "other", "arguments": {}}],
        [{"name": "time"}],
        [{**time, "x": 1}],
    ]
    assert not any(schema.is_valid(each) for each in wrong)


def test_one_call_is_an_object() -> None:
    schema = schema_of(pb.TOOL_MODE_REQUIRED, WEATHER, TIME, parallel_tool_calls=False)
    assert schema.is_valid({"name": "time", "arguments": {}})
    assert not schema.is_valid([{"name": "time", "arguments": {}}])


def test_a_named_tool_is_called_once_and_no_other() -> None:
    schema = schema_of("time", WEATHER, TIME)
    assert schema.is_valid({"name": "time", "arguments": {}})
    assert not schema.is_valid({"name": "weather", "arguments": {"city": "Rom"}})


def test_references_within_a_tools_schema_stay_within_it() -> None:
    schema = schema_of(pb.TOOL_MODE_REQUIRED, WEATHER, PLANT, parallel_tool_calls=False)
    call = {"name": "plant", "arguments": {"root": {"left": {"left": {}}}, "sample": {"$ref": "#/kept"}}}
    assert schema.is_valid(call)
    call["arguments"] = {"root": {"left": {"right": {}}}}
    assert not schema.is_valid(call)


CALLS = [pb.ToolCall(id="c1", name="weather", arguments='{"city": "Köln"}'), pb.ToolCall(id="c2", name="time")]
TALK = [
    pb.ChatMessage(role=pb.ROLE_SYSTEM, content="Be brief."),
    pb.ChatMessage(role=pb.ROLE_USER, content="How is it?"),
    pb.ChatMessage(role=pb.ROLE_ASSISTANT, content="I look.", tool_calls=CALLS),
    pb.ChatMessage(role=pb.ROLE_TOOL, content="fine", tool_call_id="c1"),
    pb.ChatMessage(role=pb.ROLE_TOOL, content="noon", tool_call_id="c2"),
    pb.ChatMessage(role=pb.ROLE_ASSISTANT, content="Fine, at noon."),
]


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"default": {"$ref": "#/$defs/enum"}}, "$defs": {"enum": {"type": "integer"}}},
        {
            "$id": "https://example.org/a",
            "properties": {"default": {"$ref": "#/$defs/V"}},
            "$defs": {"V": {"const": 7}},
        },
        {"properties": {"default": {"$ref": "#v"}}, "$defs": {"V": {"$anchor": "v", "type": "integer"}}},
        {
            "properties": {"$id": {"type": "string"}, "default": {"$ref": "#/definitions/V"}},
            "definitions": {"V": {"const": 7}},
        },
    ],
    ids=["keywords as names", "id", "anchor", "a property named id"],
)
def test_whatever_a_schema_refers_to_it_finds(parameters: dict[str, Any]) -> None:
    tool = pb.Tool(name="f", parameters=json.dumps({"type": "object", **parameters}))
    schema = schema_of(pb.TOOL_MODE_REQUIRED, tool, pb.Tool(name="g"))
    assert schema.is_valid([{"name": "f", "arguments": {"default": 7}}])
    assert not schema.is_valid([{"name": "f", "arguments": {"default": "seven"}}])


def shown(messages: list[pb.ChatMessage], knows_tools: bool, *tools: pb.Tool) -> list[Any]:
    request = pb.ChatRequest(messages=messages, tools=tools)
    return for_template(request, read(tools=tools), knows_tools)


def test_a_template_that_knows_tools_reads_calls_and_answers() -> None:
    assert shown(TALK, True, WEATHER) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How is it?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}},
                # What a model wrote need not be JSON.
                {"id": "c2", "type": "function", "function": {"name": "time", "arguments": ""}},
            ],
        },
        {"role": "tool", "content": "fine", "tool_call_id": "c1"},
        {"role": "tool", "content": "noon", "tool_call_id": "c2"},
        {"role": "assistant", "content": "Fine, at noon."},
    ]


def test_for_any_other_everything_is_spelled_out() -> None:
    system, *rest = shown(TALK, False, WEATHER)
    spec = json.dumps(read(tools=[WEATHER]).specs[0])
    assert system == {"role": "system", "content": "Be brief.\n\n" + INSTRUCTION.format(tools=spec)}
    assert '{"name": "the name", "arguments": {"the argument": "its value"}}' in system["content"]
    assert rest == [
        {"role": "user", "content": "How is it?"},
        {
            "role": "assistant",
            "content": "I look.\n"
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "time", "arguments": ""}\n</tool_call>',
        },
        {
            "role": "user",
            "content": "<tool_response>\nfine\n</tool_response>\n<tool_response>\nnoon\n</tool_response>",
        },
        {"role": "assistant", "content": "Fine, at noon."},
    ]


def test_tools_come_before_a_conversation_without_a_system_message() -> None:
    first, second = shown(TALK[1:2], False, TIME)
    assert (first["role"], second) == ("system", {"role": "user", "content": "How is it?"})
    assert shown(TALK[1:2], False) == [second]
