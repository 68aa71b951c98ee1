"""Structured output, from the public oneof to the wire's Constraint: its kind, its source, and what is plainly wrong.

Knows how big a source may be and what JSON is. Whether a schema, an expression or a grammar compiles is the engine's to
say.
"""

import json

import msgspec

from gateway.fields import Fields
from services.runtime.settings import GatewaySettings
from services.wire.messages import Constraint, ConstraintKind
from tandem.v1 import common_pb2

KINDS = {
    "json_schema": ConstraintKind.JSON_SCHEMA,
    "json_object": ConstraintKind.JSON_OBJECT,
    "regex": ConstraintKind.REGEX,
    "choice": ConstraintKind.CHOICE,
    "grammar": ConstraintKind.GRAMMAR,
}
FIELDS = {kind: name for name, kind in KINDS.items()}
# Deeper values are nobody's schema, and take the stack of whoever walks them.
MAX_NESTING = 64


class JsonError(ValueError):
    """A text is not the JSON that it should be; the message may be shown to the client."""


def read_constraint(message: common_pb2.Sampling, fields: Fields, settings: GatewaySettings) -> Constraint | None:
    """What the output must be, if anything; violations are noted."""
    name = message.WhichOneof("constraint")
    if name is None or (name == "json_object" and not message.json_object):
        return None
    if name == "json_object":
        return Constraint(ConstraintKind.JSON_OBJECT, "")
    if name == "choice":
        return _choice(message.choice, fields, settings)
    source = str(getattr(message, name))
    size = len(source.encode())
    if not 0 < size <= settings.max_constraint_bytes:
        fields.wrong(name, f"must have 1 to {settings.max_constraint_bytes} bytes of UTF-8, has {size}")
    elif name == "json_schema":
        try:
            check_schema(parse_json(source))
        except JsonError as error:
            fields.wrong(name, str(error))
    return Constraint(KINDS[name], source)


def parse_json(text: str) -> object:
    """The value of a JSON text; raises JsonError for what is none, or is nested deeper than MAX_NESTING."""
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise JsonError(f"must be JSON: {error}") from error
    level = [value]
    for _ in range(MAX_NESTING):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return value
    raise JsonError(f"must not be nested deeper than {MAX_NESTING}")


def check_schema(value: object) -> None:
    """Raise JsonError unless the value can be a JSON Schema: an object or a truth value."""
    if not isinstance(value, dict | bool):
        raise JsonError("must be a JSON Schema, which is an object, true or false")


def to_json(value: object) -> str:
    """The JSON text of a value, in the order of its keys."""
    return json.dumps(value, ensure_ascii=False)


def _inside(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _choice(choices: common_pb2.Choices, fields: Fields, settings: GatewaySettings) -> Constraint | None:
    texts = list(choices.texts)
    size = sum(len(text.encode()) for text in texts)
    if not 0 < len(texts) <= settings.max_choices:
        fields.wrong("choice.texts", f"must have 1 to {settings.max_choices} entries, has {len(texts)}")
    elif size > settings.max_constraint_bytes:
        fields.wrong("choice.texts", f"must have at most {settings.max_constraint_bytes} bytes together, has {size}")
    elif "" in texts:
        fields.wrong(f"choice.texts[{texts.index('')}]", "must not be empty")
    else:
        return Constraint(ConstraintKind.CHOICE, to_json(texts))
    return None
