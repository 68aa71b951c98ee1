"""Answers that may hold tool calls: text in as it comes, content and pieces of calls out, nothing twice, nothing lost.

Two spellings are read. Tagged: <tool_call> and </tool_call> around a call, or around an array of calls (Hermes, Qwen,
SmolLM). Plain: a call or an array of calls where an answer begins or behind another call (Llama, Mistral, and every
answer that must be a call). Held back is only what may still turn out to be a call: a beginning of the marker, blanks
before a call, an object up to its name and the first brace of its arguments. What turns out to be none is content, as
it was written. Knows the names of the tools; knows nothing of tokens and messages. A character is looked at once.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from gateway.call_json import SPACE, BrokenCall, CallObject
from gateway.conversations import CALL_BEGIN, CALL_END
from gateway.tools import Tools

ID_BYTES = 12


def mint_id() -> str:
    """A name for a call that no other call has."""
    return f"call_{secrets.token_hex(ID_BYTES)}"


@dataclass(frozen=True)
class CallPiece:
    """A piece of a call; id and name in its first one alone."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True)
class Said:
    """What new text means."""

    content: str = ""
    calls: tuple[CallPiece, ...] = ()

    def __add__(self, other: "Said") -> "Said":
        return Said(self.content + other.content, self.calls + other.calls)


class _At(Enum):
    """Where the reader is."""

    TEXT = auto()
    CALLS = auto()  # a call, or an array of them, is to begin
    CALL = auto()  # the next call of an array is to begin
    OBJECT = auto()
    BEHIND = auto()  # a comma or the end of an array


class AnswerReader:
    """Reads one answer. num_calls: those that were told."""

    def __init__(self, tools: Tools, mint: Callable[[], str] = mint_id) -> None:
        self.num_calls = 0
        self._names = tools.names
        self._max_calls = tools.max_calls
        self._mint = mint
        self._at = _At.TEXT
        self._may_begin = True  # a plain call may stand here: nothing but blanks since the beginning, or since a call
        self._is_tagged = False  # the end marker is to come
        self._is_array = False
        self._held = ""  # of the text: it may become a marker, or blanks before a call
        self._doubtful: list[str] = []  # content, if it turns out that no call begins here
        self._object = CallObject((), False)
        self._is_told = False  # the call that is read is one for sure
        self._is_counted = False  # and the client is told of it
        self._num_since_opening = 0  # calls, since a marker or a bracket opened them
        self._content: list[str] = []
        self._calls: list[CallPiece] = []

    def feed(self, text: str) -> Said:
        """Take in the next text."""
        while text:
            text = self._read_text(text) if self._at is _At.TEXT else self._read_calls(text)
        self._tell()
        return self._said()

    def finish(self) -> Said:
        """The text has ended: what is held back is decided."""
        if self._at is not _At.TEXT:
            # A next call of an array that was cut off says nothing by itself.
            self._content += [] if self._num_since_opening else self._doubtful
        elif not self._is_leftover(self._held):
            self._content.append(self._held)
        self._doubtful, self._held = [], ""
        return self._said()

    def _said(self) -> Said:
        said = Said("".join(self._content), tuple(self._calls))
        self._content.clear()
        self._calls.clear()
        return said

    def _is_leftover(self, held: str) -> bool:
        """Whether text held back at the end says nothing: blanks behind a call, or the beginning of its end marker."""
        return bool(self.num_calls) and (
            not held.strip(SPACE) or (self._is_tagged and CALL_END.startswith(held.strip(SPACE)))
        )

    # Text ---------------------------------------------------------------------------------------------------------

    def _read_text(self, text: str) -> str:
        """Read up to where a call may begin; the rest is returned."""
        text, self._held = self._held + text, ""
        if self._may_begin:
            start = len(text) - len(text.lstrip(SPACE))
            if text[start : start + 1] in ("{", "["):
                self._open(text[:start], is_tagged=False)
                return text[start:]
        place, marker = self._next_marker(text)
        if marker is None:
            self._hold(text)
            return ""
        before, rest = text[:place], text[place + len(marker) :]
        if marker == CALL_END:
            # It is the end of a call: not part of the content, and neither are the blanks around it.
            self._is_tagged = False
            self._say("" if self._may_begin else before)
            self._may_begin = True
            return rest
        is_blank = self._may_begin and not before.strip(SPACE)
        self._say("" if is_blank else before)
        self._open(before + marker if is_blank else marker, is_tagged=True)
        return rest

    def _open(self, opening: str, is_tagged: bool) -> None:
        self._doubtful = [opening]
        self._is_tagged = is_tagged
        self._is_array = False
        self._num_since_opening = 0
        self._at = _At.CALLS

    def _next_marker(self, text: str) -> tuple[int, str | None]:
        found = [(text.find(marker), marker) for marker in self._markers() if marker in text]
        return min(found, default=(-1, None))

    def _markers(self) -> tuple[str, ...]:
        return (CALL_BEGIN, CALL_END) if self._is_tagged else (CALL_BEGIN,)

    def _hold(self, text: str) -> None:
        """Say what is certain; keep what may become a marker, and blanks before what may become a call."""
        num_held = max(_overlap(text, marker) for marker in self._markers())
        border = len(text) - num_held
        if self._may_begin and not text[:border].strip(SPACE):
            border = 0
        self._say(text[:border])
        self._held = text[border:]

    def _say(self, text: str) -> None:
        if text:
            self._content.append(text)
            self._may_begin = False

    # Calls --------------------------------------------------------------------------------------------------------

    def _read_calls(self, text: str) -> str:
        """Read until the calls end, or turn out to be none; the rest is returned."""
        for place, char in enumerate(text):
            if not self._is_told:
                self._doubtful.append(char)
            try:
                is_over = self._read_char(char)
            except BrokenCall:
                return self._give_up(text, place)
            if is_over:
                self._at = _At.TEXT
                self._doubtful = []
                self._may_begin = True
                return text[place + 1 :]
        return ""

    def _read_char(self, char: str) -> bool:
        """Whether the calls end with this character. Raises BrokenCall."""
        if self._at is _At.OBJECT:
            is_over = self._object.feed(char)
            if self._object.has_begun and not self._is_told:
                self._begin()
            if is_over:
                self._end_object()
                return not self._is_array
        elif char in SPACE:
            return False
        elif char == "{" and self._at in (_At.CALLS, _At.CALL):
            self._object = CallObject(self._names, may_be_bare=self._is_tagged)
            self._at = _At.OBJECT
        elif char == "[" and self._at is _At.CALLS:
            self._is_array = True
            self._at = _At.CALL
        elif char == "," and self._at is _At.BEHIND:
            self._at = _At.CALL
        elif char == "]" and self._at is _At.BEHIND:
            return True
        else:
            raise BrokenCall
        return False

    def _begin(self) -> None:
        """It is a call: what was doubtful of it will be told as one, unless there are too many."""
        self._is_told = True
        self._doubtful = []
        self._num_since_opening += 1
        self._is_counted = self.num_calls < self._max_calls
        if self._is_counted:
            self._calls.append(CallPiece(self.num_calls, self._mint(), str(self._object.name)))
            self.num_calls += 1

    def _end_object(self) -> None:
        self._tell()
        self._is_told = False
        self._at = _At.BEHIND

    def _tell(self) -> None:
        """Hand on the new arguments of the call that is read."""
        if self._is_told and self._is_counted:
            arguments = self._object.take()
            if arguments:
                self._calls.append(CallPiece(self.num_calls - 1, arguments=arguments))

    def _give_up(self, text: str, place: int) -> str:
        """No call stands here, or none any more: what was doubtful is content, and so may be what follows."""
        self._tell()
        if self._is_told:
            self._is_told = False
        else:
            self._doubtful.pop()  # the character at `place`, which may begin something else
        self._content += self._doubtful
        self._doubtful = []
        if not self._num_since_opening:
            self._is_tagged = False
        self._may_begin = False
        self._at = _At.TEXT
        return text[place:]


def _overlap(text: str, marker: str) -> int:
    """The length of the longest tail of the text that is a proper prefix of the marker."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0
