"""Chat templates: a conversation into the pieces of a prompt, the template's own special tokens marked as such.

The template comes from the model file and is run by Jinja in a sandbox, with the names that templates of the field
expect. Messages are mappings with "role" and "content"; a role is one of a fixed set, every other text is somebody's
words and never becomes a special token (disguise.py). Knows nothing of ids.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.tokenizer.disguise import Disguise, Spellings, TwinsExhausted
from services.tokenizer.errors import TemplateError, TextError, TokenizerFileError

Message = Mapping[str, str]
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
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerFileError(f"tokenizer.chat_template, line {error.lineno}: {error.message}") from error

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[Piece]:
        """The prompt in pieces, none empty; raises TemplateError with a message for the client."""
        if not messages:
            raise TemplateError("a conversation needs at least one message")
        words = [text for message in messages for text in message.values()]
        for text in words:
            refuse_surrogates(text)
        try:
            disguise = Disguise(self._spellings, [self.source, *words])
            covered = [
                {key: text if key == "role" else disguise.cover(text) for key, text in message.items()}
                for message in messages
            ]
            prompt = self._template.render(messages=covered, add_generation_prompt=add_generation_prompt)
        except TwinsExhausted as error:
            raise TemplateError(str(error)) from error
        except _FAULTS as error:
            raise TemplateError(f"the chat template refuses these messages: {error}") from error
        return [(disguise.uncover(text), is_special) for text, is_special in self._spellings.split(prompt)]


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
