"""Conversations and tools from plain mappings to messages of the contract, in our words or in OpenAI's.

Schemas may be mappings, JSON text, or classes that know their own. Knows the messages; knows no channel. What cannot be
said in the contract is InvalidRequest, naming the field.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tandem.errors import invalid_field
from tandem.options import CallSpec, MessageSpec, Schema, ToolChoice, ToolSpec
from tandem.tool_calls import ToolCall
from tandem.v1 import chat_pb2

ROLES = {
    "system": chat_pb2.ROLE_SYSTEM,
    "user": chat_pb2.ROLE_USER,
    "assistant": chat_pb2.ROLE_ASSISTANT,
    "tool": chat_pb2.ROLE_TOOL,
}
MODES = {
    "auto": chat_pb2.TOOL_MODE_AUTO,
    "none": chat_pb2.TOOL_MODE_NONE,
    "required": chat_pb2.TOOL_MODE_REQUIRED,
}


def schema_text(field: str, schema: Schema) -> str:
    """A schema as JSON text."""
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, Mapping | bool):
        schema = schema.model_json_schema()
    return _json(field, schema)


def tools(specs: Iterable[ToolSpec]) -> list[chat_pb2.Tool]:
    """The tools of a request."""
    return [_tool(f"tools[{index}]", _function(spec)) for index, spec in enumerate(specs)]


def tool_choice(choice: ToolChoice) -> chat_pb2.ToolChoice:
    """Which tools may or must be called."""
    if isinstance(choice, str):
        return chat_pb2.ToolChoice(mode=MODES[choice]) if choice in MODES else chat_pb2.ToolChoice(name=choice)
    return chat_pb2.ToolChoice(name=_text("tool_choice.name", _function(choice).get("name")))


def messages(specs: Iterable[MessageSpec]) -> list[chat_pb2.ChatMessage]:
    """The conversation of a request."""
    return [_message(f"messages[{index}]", spec) for index, spec in enumerate(specs)]


def _message(field: str, spec: MessageSpec) -> chat_pb2.ChatMessage:
    role = ROLES.get(spec.get("role", ""))
    if role is None:
        raise invalid_field(f"{field}.role", f"must be one of {', '.join(ROLES)}, is {spec.get('role')!r}")
    return chat_pb2.ChatMessage(
        role=role,
        content=_text(f"{field}.content", spec.get("content") or ""),
        tool_calls=[_call(f"{field}.tool_calls[{i}]", each) for i, each in enumerate(spec.get("tool_calls") or ())],
        tool_call_id=None if spec.get("tool_call_id") is None else _text(f"{field}.tool_call_id", spec["tool_call_id"]),
    )


def _call(field: str, spec: CallSpec) -> chat_pb2.ToolCall:
    if isinstance(spec, ToolCall):
        return chat_pb2.ToolCall(id=spec.id, name=spec.name, arguments=spec.arguments)
    function = _function(spec)
    arguments = function.get("arguments", "{}")
    return chat_pb2.ToolCall(
        id=_text(f"{field}.id", spec.get("id", "")),
        name=_text(f"{field}.name", function.get("name", "")),
        arguments=_text(f"{field}.arguments", arguments)
        if isinstance(arguments, str)
        else _json(f"{field}.arguments", arguments),
    )


def _tool(field: str, function: Mapping[str, Any]) -> chat_pb2.Tool:
    tool = chat_pb2.Tool(name=_text(f"{field}.name", function.get("name", "")))
    if function.get("description") is not None:
        tool.description = _text(f"{field}.description", function["description"])
    if function.get("parameters") is not None:
        parameters = f"{field}.parameters"
        tool.parameters = _text(parameters, schema_text(parameters, function["parameters"]))
    return tool


def _function(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Out of OpenAI's envelope, {"type": "function", "function": {...}}, if it is in one."""
    inner = spec.get("function")
    return inner if isinstance(inner, Mapping) else spec


def _text(field: str, value: object) -> str:
    """A string that the wire can carry."""
    if not isinstance(value, str):
        raise invalid_field(field, f"must be a string, is {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise invalid_field(field, str(error)) from error
    return value


def _json(field: str, value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid_field(field, f"must be JSON: {error}") from error
