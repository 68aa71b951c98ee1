"""One tool call as JSON, read a character at a time: {"name": ..., "arguments": {...}}, in any order of its keys.

It tells as early as it can whether the object is a call, and hands on the arguments as they come, in the model's own
words: they are delimited by brackets and quotes, not checked. "parameters" is another word for "arguments"; arguments
may be spelled as a JSON string, and are then handed on when it has ended. Knows nothing of text around the object.
"""

import json
from collections.abc import Collection
from enum import Enum, auto

ARGUMENTS = frozenset({"arguments", "parameters"})
# An object with any other key is an answer in JSON, and is let go at that key.
KEYS = ARGUMENTS | {"name", "id", "type"}
SPACE = " \t\n\r"
_CLOSERS = {"{": "}", "[": "]"}


class BrokenCall(Exception):
    """The text is no call of an offered tool."""


class _Expects(Enum):
    """What comes next, blanks aside."""

    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    REST = auto()  # of a key, or of a value that has brackets or quotes
    COMMA_OR_END = auto()  # or more of a number, true, false, null


class _Span:
    """How far a JSON value goes that begins with a quote or a bracket."""

    __slots__ = ("_closers", "_is_escaped", "_is_string")

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._is_string = False
        self._is_escaped = False

    def ends_with(self, char: str) -> bool:
        """Whether the value is complete with its next character; raises BrokenCall for a bracket that fits none."""
        if self._is_string:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._is_string = False
                return not self._closers
        elif char == '"':
            self._is_string = True
        elif char in _CLOSERS:
            self._closers.append(_CLOSERS[char])
        elif char in "}]":
            if self._closers.pop() != char:
                raise BrokenCall
            return not self._closers
        return False


class CallObject:
    """name: of the tool, once it is known. has_begun: it is a call for sure, and `take` has its arguments so far."""

    def __init__(self, names: Collection[str], may_be_bare: bool) -> None:
        """names: of the tools that are offered. may_be_bare: an object that has only a name is a call too."""
        self.name: str | None = None
        self.has_begun = False
        self._names = names
        self._may_be_bare = may_be_bare
        self._expects = _Expects.KEY_OR_END
        self._key: str | None = None  # of the value that is read; None while a key is
        self._span = _Span()
        self._read: list[str] = []  # of the key or value that is read
        self._arguments: list[str] = []  # not taken yet
        self._has_arguments = False
        self._streams = False  # what is read goes to the arguments at once

    def feed(self, char: str) -> bool:
        """Take in one character behind the opening brace; True when the object is complete. Raises BrokenCall."""
        if self._expects is _Expects.REST:
            is_over = self._span.ends_with(char)
            (self._arguments if self._streams else self._read).append(char)
            if is_over:
                self._end_span()
        elif char not in SPACE:
            return self._step(char)
        return False

    def take(self) -> str:
        """The new arguments."""
        taken = "".join(self._arguments)
        self._arguments.clear()
        return taken

    def _step(self, char: str) -> bool:
        expects = self._expects
        if char == "}" and expects in (_Expects.KEY_OR_END, _Expects.COMMA_OR_END):
            self._end()
            return True
        if char == '"' and expects in (_Expects.KEY_OR_END, _Expects.KEY):
            self._key = None
            self._begin_span(char)
        elif char == ":" and expects is _Expects.COLON:
            self._expects = _Expects.VALUE
        elif expects is _Expects.VALUE:
            self._begin_value(char)
        elif char == "," and expects is _Expects.COMMA_OR_END:
            self._expects = _Expects.KEY
        elif not (_is_literal(char) and expects is _Expects.COMMA_OR_END):
            raise BrokenCall
        return False

    def _begin_value(self, char: str) -> None:
        is_name, is_arguments = self._key == "name", self._key in ARGUMENTS
        if (is_name and (self.name or char != '"')) or (is_arguments and (self._has_arguments or char not in '{"')):
            raise BrokenCall
        if char not in '"{[':
            if not _is_literal(char):
                raise BrokenCall
            self._expects = _Expects.COMMA_OR_END
            return
        self._begin_span(char)
        self._streams = is_arguments and char == "{"
        if self._streams:
            self._arguments = [char]
            self._has_arguments = True
            self.has_begun = self.name is not None

    def _begin_span(self, char: str) -> None:
        self._span = _Span()
        self._span.ends_with(char)
        self._read = [char]
        self._streams = False
        self._expects = _Expects.REST

    def _end_span(self) -> None:
        self._expects = _Expects.COMMA_OR_END
        if self._key is None:
            self._key = _text(self._read)
            if self._key not in KEYS:
                raise BrokenCall
            self._expects = _Expects.COLON
        elif self._key == "name":
            self.name = _text(self._read)
            if self.name not in self._names:
                raise BrokenCall
        elif self._key in ARGUMENTS and not self._streams:
            self._arguments = [_text(self._read)]
            self._has_arguments = True
        self.has_begun = self.name is not None and self._has_arguments

    def _end(self) -> None:
        if not self._has_arguments and self._may_be_bare:
            self._arguments = ["{}"]
            self._has_arguments = True
        self.has_begun = self.name is not None and self._has_arguments
        if not self.has_begun:
            raise BrokenCall


def _is_literal(char: str) -> bool:
    return char.isalnum() or char in "+-."


def _text(read: list[str]) -> str:
    """The string that was read, quotes and all. A half of a surrogate pair is no text, and becomes U+FFFD."""
    try:
        value: object = json.loads("".join(read), strict=False)
    except ValueError as error:
        raise BrokenCall from error
    if not isinstance(value, str):
        raise BrokenCall
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
