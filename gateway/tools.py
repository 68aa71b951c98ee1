"""The tools of a conversation: what a request offers, and what must come out when a call is required.

From the public tools and tool_choice to what the chat template is shown, which names a call may have, and the JSON
Schema of an answer that must be a call. Pure: knows JSON and the gateway's bounds; knows no template and no call.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.constraints import JsonError, parse_json, to_json
from gateway.errors import Violation
from gateway.fields import Fields, shown
from services.runtime.settings import GatewaySettings
from tandem.v1 import chat_pb2

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
# Below these keys of a schema lie values, not schemas.
_VALUES = frozenset({"const", "enum", "default", "examples"})
# And below these, schemas by name, whatever the names are.
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})


@dataclass(frozen=True)
class Tools:
    """What the model may call. schema: of an answer that must be a call, or of calls; None: it may say anything."""

    specs: tuple[Mapping[str, Any], ...] = ()  # as chat templates of the field expect them
    max_calls: int = 0
    schema: str | None = None

    @property
    def names(self) -> frozenset[str]:
        """The names that a call may have."""
        return frozenset(spec["function"]["name"] for spec in self.specs)


NO_TOOLS = Tools()


def read_tools(request: chat_pb2.ChatRequest, violations: list[Violation], settings: GatewaySettings) -> Tools:
    """The tools that the model is shown; violations are noted."""
    fields = Fields(request, "", violations)
    num_before = len(violations)
    specs = _specs(request, fields, settings)
    required = _required(request.tool_choice, [spec["function"]["name"] for spec in specs], fields)
    if len(violations) > num_before or not specs or request.tool_choice.mode == chat_pb2.TOOL_MODE_NONE:
        return NO_TOOLS
    max_calls = settings.max_tool_calls if fields.flag("parallel_tool_calls", True) else 1
    if required is None:
        return Tools(specs, max_calls)
    functions = [spec["function"] for spec in specs if required in ("", spec["function"]["name"])]
    return Tools(specs, max_calls, _schema_of_calls(functions, 1 if required else max_calls))


def _required(choice: chat_pb2.ToolChoice, names: list[str], fields: Fields) -> str | None:
    """The tool that must be called; "" for any, None when none must be."""
    kind = choice.WhichOneof("choice")
    if kind == "name":
        if choice.name not in names:
            fields.wrong("tool_choice.name", f"must be the name of one of the tools, is {shown(choice.name)}")
        return choice.name
    if kind == "mode" and choice.mode not in chat_pb2.ToolMode.values():
        fields.wrong("tool_choice.mode", f"must be one of {tuple(chat_pb2.ToolMode.keys())}, is {choice.mode}")
    if choice.mode != chat_pb2.TOOL_MODE_REQUIRED:
        return None
    if not names:
        fields.wrong("tool_choice.mode", "must not be TOOL_MODE_REQUIRED without tools")
    return ""


def _specs(request: chat_pb2.ChatRequest, fields: Fields, settings: GatewaySettings) -> tuple[Mapping[str, Any], ...]:
    if not fields.count("tools", settings.max_tools):
        return ()
    size = sum(len(text.encode()) for tool in request.tools for text in (tool.name, tool.description, tool.parameters))
    if size > settings.max_tool_bytes:
        fields.wrong("tools", f"must have at most {settings.max_tool_bytes} bytes of UTF-8 together, has {size}")
        return ()
    specs: dict[str, Mapping[str, Any]] = {}
    for index, tool in enumerate(request.tools):
        path = f"tools[{index}]"
        if not NAME.fullmatch(tool.name):
            fields.wrong(f"{path}.name", f"must be 1 to 64 of A-Z a-z 0-9 _ . -, is {shown(tool.name)}")
        elif tool.name in specs:
            fields.wrong(f"{path}.name", f"must be used once, {shown(tool.name)} is the name of an earlier tool")
        try:
            parameters = _parameters(tool)
        except JsonError as error:
            fields.wrong(f"{path}.parameters", str(error))
            continue
        function = {"name": tool.name, "description": tool.description, "parameters": parameters}
        specs[tool.name] = {"type": "function", "function": function}
    return tuple(specs.values())


def _parameters(tool: chat_pb2.Tool) -> Mapping[str, Any]:
    if not tool.HasField("parameters"):
        return NO_ARGUMENTS
    schema = parse_json(tool.parameters)
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise JsonError('must be a JSON Schema whose "type" is "object"')
    return {"type": "object", **schema}


def _schema_of_calls(functions: Iterable[Mapping[str, Any]], max_calls: int) -> str:
    """One call when there may be one, else an array of them. Each tool's schema has a place of its own under $defs,
    where what it refers to is found too."""
    definitions: dict[str, object] = {}
    calls = []
    for order, function in enumerate(functions):
        place = f"arguments_{order}"
        definitions[place] = _moved(function["parameters"], f"#/$defs/{place}")
        properties = {"name": {"const": function["name"]}, "arguments": {"$ref": f"#/$defs/{place}"}}
        required = list(properties)
        calls.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    one = calls[0] if len(calls) == 1 else {"anyOf": calls}
    whole = one if max_calls == 1 else {"type": "array", "items": one, "minItems": 1, "maxItems": max_calls}
    return to_json({**whole, "$defs": definitions})


def _moved(schema: object, root: str, is_map: bool = False) -> object:
    """The schema with its references to itself as they must be when it stands at `root` of another. One with an $id is
    its own root wherever it stands. is_map: its keys are names, and schemas below them."""
    if isinstance(schema, list):
        return [_moved(inner, root) for inner in schema]
    if not isinstance(schema, dict) or (isinstance(schema.get("$id"), str) and not is_map):
        return schema
    moved: dict[str, object] = {}
    for key, value in schema.items():
        if is_map:
            moved[key] = _moved(value, root)
        elif key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
            moved[key] = root + value[1:]
        else:
            moved[key] = value if key in _VALUES else _moved(value, root, is_map=key in _MAPS)
    return moved
