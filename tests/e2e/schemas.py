"""Varied JSON schemas: nested objects, enums, bounded arrays and numbers, patterns, formats, unions, optional members.

Every value that one of them allows has a bound, so that an answer within enough tokens is complete.
"""

import random
from typing import Any

Schema = dict[str, Any]

NAMES = ["name", "id", "city", "tags", "size", "color", "price", "items", "kind", "score"]
DEFINITIONS: Schema = {
    "point": {
        "type": "object",
        "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}, "y": {"enum": [0, 1]}},
        "required": ["x", "y"],
        "additionalProperties": False,
    }
}


def schemas(count: int, seed: int = 0) -> list[Schema]:
    """So many of them, the same ones for the same seed."""
    chance = random.Random(seed)
    return [_object(chance, depth=0) | {"$defs": DEFINITIONS} for _ in range(count)]


def _object(chance: random.Random, depth: int) -> Schema:
    names = chance.sample(NAMES, chance.randint(1, 4))
    properties = {name: _value(chance, depth) for name in names}
    required = sorted(chance.sample(names, chance.randint(1, len(names))))
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _value(chance: random.Random, depth: int) -> Schema:
    kind = chance.random()
    if depth < 2 and kind < 0.2:
        return _object(chance, depth + 1)
    if kind < 0.35:
        most = chance.randint(1, 3)
        return {"type": "array", "items": _scalar(chance), "minItems": chance.randint(0, most), "maxItems": most}
    return _scalar(chance)


def _scalar(chance: random.Random) -> Schema:
    most = chance.randint(1, 12)
    return chance.choice(
        [
            {"type": "string", "minLength": 1, "maxLength": most},
            {"type": "string", "pattern": r"^[A-Z]{2}-[0-9]{2,4}$"},
            {"type": "string", "format": chance.choice(["date", "uuid", "ipv4"])},
            {"type": "integer", "minimum": -most, "maximum": most * 100},
            {"type": "number", "exclusiveMinimum": 0, "maximum": most + 0.5, "multipleOf": 0.5},
            {"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 99},
            {"type": "boolean"},
            {"type": ["integer", "null"], "minimum": 0, "maximum": 5},
            {"enum": ["red", "green", "blue", most]},
            {"const": chance.choice(["fixed", most, True, None])},
            {"anyOf": [{"type": "string", "maxLength": 6}, {"type": "integer", "minimum": 0, "maximum": 9}]},
            {"allOf": [{"type": "integer"}, {"minimum": 3, "maximum": 7}]},
            {"$ref": "#/$defs/point"},
        ]
    )
