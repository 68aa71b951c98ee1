"""Settings as text: what every key is called, takes and means; values from flags and the environment; TOML and tables.

The structs of settings.py are the one source. What a key means is the comment on its line there, which is read from
that file: a second copy would drift. A key `section.name` is `name` under [section] in the TOML file, the flag
`--section.name`, and the environment variable TANDEM_SECTION_NAME. Knows no precedence; reads no environment.
"""

import inspect
import json
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as types

from services.runtime.settings import ServerSettings, SettingsError

PREFIX = "TANDEM_"
MARK = "<!-- Every key: `make settings` writes what follows. -->\n"
Sections = dict[str, Any]  # values by section and key, and those that stand in no section by key


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. section: empty for those that stand in none."""

    section: str
    name: str
    annotation: Any
    default: Any
    meaning: str

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.path.replace(".", "_").upper()

    @property
    def takes(self) -> str:
        """The values it may have, for people."""
        return "".join(_takes(types.type_info(self.annotation)))

    def parse(self, text: str) -> Any:
        """A value from text; raises SettingsError. Entries of a list are separated by commas."""
        value: Any = text
        if isinstance(types.type_info(self.annotation), types.VarTupleType):
            value = [part.strip() for part in text.split(",") if part.strip()]
        try:
            return msgspec.convert(value, self.annotation, strict=False)
        except msgspec.ValidationError as error:
            raise SettingsError(f"{self.path}: {error} (from {text!r})") from error


@cache
def keys() -> Mapping[str, Key]:
    """Every key by its path, in the order of the structs."""
    return {key.path: key for key in _keys()}


def from_flags(arguments: Sequence[str]) -> Sections:
    """Values of `--section.name value` and `--section.name=value`; raises SettingsError for anything else."""
    sections: Sections = {}
    rest = iter(arguments)
    for argument in rest:
        path, has_value, text = argument.removeprefix("--").partition("=")
        key = keys().get(path)
        if key is None or not argument.startswith("--"):
            raise SettingsError(f"{argument.partition('=')[0]}: there is no such flag")
        if not has_value:
            following = next(rest, None)
            if following is None:
                raise SettingsError(f"--{path}: a value must follow")
            text = following
        _put(sections, key, text)
    return sections


def from_environment(environment: Mapping[str, str]) -> Sections:
    """Values of TANDEM_SECTION_NAME. One that begins like a section and is no key is a SettingsError, not a surprise;
    other variables are none of ours."""
    sections: Sections = {}
    by_variable = {key.variable: key for key in keys().values()}
    starts = tuple({f"{PREFIX}{key.section.upper()}_" for key in keys().values() if key.section})
    for variable, text in environment.items():
        key = by_variable.get(variable)
        if key is not None:
            _put(sections, key, text)
        elif variable.startswith(starts):
            raise SettingsError(f"{variable}: there is no such setting")
    return sections


def to_toml(settings: ServerSettings) -> str:
    """Every key with its value and what it means, as a file that can be read again."""
    values, lines = msgspec.to_builtins(settings), []
    section = ""
    for key in sorted(keys().values(), key=lambda key: bool(key.section)):  # those without a section must come first
        if key.section != section:
            section = key.section
            lines += ["", f"[{section}]"]
        value = values[section][key.name] if section else values[key.name]
        lines.append(f"{key.name} = {json.dumps(value, ensure_ascii=False)}  # {key.meaning}")
    return "\n".join(lines).lstrip() + "\n"


def to_table() -> str:
    """Every key as tables in Markdown, a section each."""
    lines = []
    for section in dict.fromkeys(key.section for key in keys().values()):
        lines += ["", f"### [{section}]" if section else "### In no section", ""]
        lines += ["| key | takes | default | meaning |", "|---|---|---|---|"]
        for key in keys().values():
            if key.section == section:
                cells = (f"`{key.name}`", key.takes, f"`{json.dumps(key.default)}`", key.meaning)
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines).strip() + "\n"


def _keys() -> Iterator[Key]:
    for field in msgspec.structs.fields(ServerSettings):
        if _is_section(field.type):
            meanings = _meanings(field.type)
            for inner in msgspec.structs.fields(field.type):
                yield Key(field.name, inner.name, inner.type, inner.default, meanings[inner.name])
        else:
            yield Key("", field.name, field.type, field.default, _meanings(ServerSettings)[field.name])


def _is_section(annotation: Any) -> bool:
    """Whether a field of ServerSettings is a struct of keys."""
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def _meanings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The comment on the line of each field; a field without one is a bug."""
    code = inspect.getsource(struct)
    found, name = {}, ""
    for token in tokenize.generate_tokens(StringIO(code).readline):
        if token.type == tokenize.NAME and token.line[: token.start[1]] == "    " and token.line.lstrip()[0] != '"':
            name = token.string
        elif token.type == tokenize.COMMENT and token.start[1] > 4:
            found[name] = token.string.removeprefix("#").strip()
    wanted = {field.name for field in msgspec.structs.fields(struct) if not _is_section(field.type)}
    assert wanted <= found.keys(), f"what do {wanted - found.keys()} of {struct.__name__} mean?"
    return found


def _put(sections: Sections, key: Key, text: str) -> None:
    target = sections.setdefault(key.section, {}) if key.section else sections
    target[key.name] = key.parse(text)


def _takes(kind: types.Type) -> Iterator[str]:
    match kind:
        case types.LiteralType(values=values):
            yield " or ".join(f"`{value}`" for value in values)
        case types.BoolType():
            yield "`true` or `false`"
        case types.IntType(ge=ge, le=le) | types.FloatType(ge=ge, le=le):
            yield "integer" if isinstance(kind, types.IntType) else "number"
            yield "" if ge is None else f", at least {ge}"
            yield "" if kind.gt is None else f", more than {kind.gt}"
            yield "" if le is None else f", at most {le}"
        case types.StrType(pattern=pattern):
            yield "text" if pattern is None else f"text like `{pattern}`"
        case types.VarTupleType(item_type=item):
            yield "list of "
            yield from _takes(item)
        case _:
            raise AssertionError(f"settings of type {kind} have no words yet")


def write_table(page: Path) -> None:
    """Put the tables after the mark of a page, in the place of what was there."""
    head, mark, _ = page.read_text().partition(MARK)
    assert mark, f"{page} has no mark"
    page.write_text(head + mark + "\n" + to_table())


if __name__ == "__main__":
    write_table(Path(sys.argv[1]))
