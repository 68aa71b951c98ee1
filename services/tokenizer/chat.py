"""Chat templates: a conversation into the pieces of a prompt, the template's own special tokens marked as such.

The template comes from the model file and is run by Jinja in a sandbox, with the names that templates of the field
expect. Messages are mappings with "role" and "content", tools are JSON values; a role is one of a fixed set, every
other text, however deep, is somebody's words and never becomes a special token (disguise.py). Knows nothing of ids.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.tokenizer.disguise import Disguise, Spellings, TwinsExhausted
from services.tokenizer.errors import TemplateError, TextError, TokenizerFileError

Message = Mapping[str, Any]
Piece = tuple[str, bool]  # a text, and whether it is a special token

# What a template can raise by itself when it meets a conversation that its author did not foresee.
_FAULTS = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class ChatTemplate:
    """One model's template. `source`: its Jinja text. `names`: special texts it may ask for, such as bos_token."""

    def __init__(
        self,
        source: str,
        special_texts: Sequence[str],
        names: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self._spellings = Spellings(special_texts)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(names)
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
        try:
            self._template = environment.from_string(source)
            # Whether it shows tools to the model, when it is given some.
            self.knows_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerFileError(f"tokenizer.chat_template, line {error.lineno}: {error.message}") from error

    def render(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[Piece]:
        """The prompt in pieces, none empty; raises TemplateError with a message for the client."""
        if not messages:
            raise TemplateError("a conversation needs at least one message")
        words = [*_texts(messages), *_texts(tools)]
        for text in words:
            refuse_surrogates(text)
        try:
            disguise = Disguise(self._spellings, [self.source, *words])
            prompt = self._template.render(
                messages=[
                    {key: value if key == "role" else _covered(value, disguise) for key, value in message.items()}
                    for message in messages
                ],
                # Templates ask whether there are tools by their truth, or by whether they are none.
                tools=_covered(list(tools), disguise) if tools else None,
                add_generation_prompt=add_generation_prompt,
            )
        except TwinsExhausted as error:
            raise TemplateError(str(error)) from error
        except _FAULTS as error:
            raise TemplateError(f"the chat template refuses these messages: {error}") from error
        return [(disguise.uncover(text), is_special) for text, is_special in self._spellings.split(prompt)]


def _texts(value: Any) -> Iterator[str]:
    """Every text of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(inner)


def _covered(value: Any, disguise: Disguise, key: str = "") -> Any:
    """The same value with all its texts covered; key: where it stands.

    Keys, and names of types, are what templates look for ("name", "function"): they are left as they are unless they
    begin a special token themselves, since no template lets one end in them.
    """
    if isinstance(value, str):
        return disguise.cover(value, may_continue=key != "type")
    if isinstance(value, Mapping):
        return {disguise.cover(name, may_continue=False): _covered(value[name], disguise, name) for name in value}
    if isinstance(value, Sequence):
        return [_covered(inner, disguise) for inner in value]
    return value


def refuse_surrogates(text: str) -> None:
    """Raise TextError for half of a surrogate pair, which is no character and has no UTF-8."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TextError(f"character {error.start} is a lone surrogate (U+{ord(text[error.start]):04X})") from error


class _GenerationTag(Extension):
    """{% generation %} marks what the model wrote, for training; in serving its body is simply part of the prompt."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Jinja's own filter escapes for HTML, which no model has seen."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
