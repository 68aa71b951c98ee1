"""Conversations: what was said becomes what a chat template reads; checked, bounded, with or without tools.

A template that knows tools is shown them as the field does (OpenAI's form of tools, calls and answers). For one that
does not, INSTRUCTION stands in the system message, calls are spelled out in the model's turns, and a tool's answer is
what the person says. Knows roles and JSON; knows no tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from gateway.constraints import JsonError, parse_json, to_json
from gateway.errors import Violation
from gateway.fields import Fields, refuse_if_any
from gateway.tools import Tools
from services.runtime.settings import GatewaySettings
from services.tokenizer import Message
from tandem.v1 import chat_pb2

ROLES = {
    chat_pb2.ROLE_SYSTEM: "system",
    chat_pb2.ROLE_USER: "user",
    chat_pb2.ROLE_ASSISTANT: "assistant",
    chat_pb2.ROLE_TOOL: "tool",
}
MAX_CALL_ID_CHARS = 128

CALL_BEGIN, CALL_END = "<tool_call>", "</tool_call>"
INSTRUCTION = f"""You may call functions to help with the user's request. They are described here, one a line:
<tools>
{{tools}}
</tools>
To call one, write its name and arguments as a JSON object, and nothing else, like this:
{CALL_BEGIN}
{{{{"name": "the name", "arguments": {{{{"the argument": "its value"}}}}}}}}
{CALL_END}"""


def check_messages(request: chat_pb2.ChatRequest, settings: GatewaySettings) -> None:
    """Raise the CallError for whatever is wrong with the messages, each by its own rules."""
    violations: list[Violation] = []
    fields = Fields(request, "", violations)
    if not request.messages:
        fields.wrong("messages", "must have at least one entry")
    if fields.count("messages", settings.max_chat_messages):
        for index, message in enumerate(request.messages):
            _check_message(message, Fields(message, f"messages[{index}]", violations), settings)
    refuse_if_any(violations)


def _check_message(message: chat_pb2.ChatMessage, fields: Fields, settings: GatewaySettings) -> None:
    if message.role not in ROLES:
        fields.wrong("role", f"must be one of {tuple(ROLES.values())}, is {message.role}")
    if message.tool_calls and message.role != chat_pb2.ROLE_ASSISTANT:
        fields.wrong("tool_calls", "must be empty unless the role is ROLE_ASSISTANT")
    fields.count("tool_calls", settings.max_tool_calls)
    is_answer = message.role == chat_pb2.ROLE_TOOL
    if is_answer != bool(message.tool_call_id):
        rule = "must be given" if is_answer else "must be absent"
        fields.wrong("tool_call_id", f"{rule} when the role is {'' if is_answer else 'not '}ROLE_TOOL")
    fields.string("tool_call_id", MAX_CALL_ID_CHARS)


def said(request: chat_pb2.ChatRequest) -> str:
    """Every word of a conversation, whoever said it, and the tools: what bounds of size are held against."""
    words = [text for tool in request.tools for text in (tool.name, tool.description, tool.parameters)]
    for message in request.messages:
        words.append(message.content)
        words += [text for call in message.tool_calls for text in (call.name, call.arguments)]
    return "".join(words)


def for_template(request: chat_pb2.ChatRequest, tools: Tools, knows_tools: bool) -> list[Message]:
    """The messages as the template reads them; one that knows tools is to be given tools.specs as well."""
    if knows_tools:
        return [_with_calls(message) for message in request.messages]
    messages: list[Message] = []
    for are_answers, turns in groupby(request.messages, key=lambda message: message.role == chat_pb2.ROLE_TOOL):
        # What several tools answered is one turn of the person: many templates want the roles to alternate.
        group = list(turns)
        messages += [_answers(group)] if are_answers else map(_spelled_out, group)
    return _instructed(messages, tools) if tools.specs else messages


def _with_calls(message: chat_pb2.ChatMessage) -> Message:
    plain: dict[str, Any] = {"role": ROLES[message.role], "content": message.content}
    if message.tool_calls:
        plain["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _arguments(call: chat_pb2.ToolCall) -> object:
    """Templates expect an object; what a model wrote need not be one, and is then shown as it is."""
    try:
        value = parse_json(call.arguments)
    except JsonError:
        return call.arguments
    return value if isinstance(value, dict) else call.arguments


def _answers(messages: Iterable[chat_pb2.ChatMessage]) -> Message:
    answers = [f"<tool_response>\n{message.content}\n</tool_response>" for message in messages]
    return {"role": "user", "content": "\n".join(answers)}


def _spelled_out(message: chat_pb2.ChatMessage) -> Message:
    calls = [
        f"{CALL_BEGIN}\n{to_json({'name': call.name, 'arguments': _arguments(call)})}\n{CALL_END}"
        for call in message.tool_calls
    ]
    return {"role": ROLES[message.role], "content": "\n".join([*filter(None, [message.content]), *calls])}


def _instructed(messages: Sequence[Message], tools: Tools) -> list[Message]:
    instruction = INSTRUCTION.format(tools="\n".join(to_json(spec) for spec in tools.specs))
    first: Mapping[str, Any] = messages[0]
    if first["role"] != "system":
        return [{"role": "system", "content": instruction}, *messages]
    return [{"role": "system", "content": f"{first['content']}\n\n{instruction}"}, *messages[1:]]
