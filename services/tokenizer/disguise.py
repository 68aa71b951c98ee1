"""Keeping a client's words apart from a template's special tokens while both are one string.

A chat template joins the two by plain concatenation, so text that merely spells a special token would become one and
forge a turn. Before rendering, `cover` swaps one character of every such spelling for a private twin that occurs
nowhere in the conversation; after the template's own special tokens are cut out, `uncover` swaps back. A spelling that
would only arise from a join (one text ends in "<", the next begins with "|im_end|>") is broken the same way.
Knows nothing of Jinja and of ids. Templates still see the words as they are in every other place, so tests such as
content.startswith("<tool_response>") keep working.
"""

import re
from collections.abc import Iterable, Iterator

_PRIVATE_USE = range(0xF0000, 0xFFFFE)


class TwinsExhausted(ValueError):
    """The texts use up every private character: no conversation does."""


class Spellings:
    """How special tokens are spelled, prepared once for a vocabulary."""

    def __init__(self, special_texts: Iterable[str]) -> None:
        texts = sorted({text for text in special_texts if text}, key=len, reverse=True)
        self.alphabet = tuple(sorted(set("".join(texts))))
        self._specials = re.compile("(" + "|".join(map(re.escape, texts)) + ")") if texts else None
        self._openings = re.compile("|".join(_openings(texts))) if texts else None
        self._tails = frozenset(text[start:] for text in texts for start in range(1, len(text)))
        self._tail_lengths = tuple(sorted({len(tail) for tail in self._tails}))
        self._insides = "\n".join(text[1:-1] for text in texts)

    def split(self, text: str) -> Iterator[tuple[str, bool]]:
        """Its pieces in order, each with whether it is a special token; the longest spelling wins; none is empty."""
        pieces = self._specials.split(text) if self._specials else [text]
        return ((piece, order % 2 == 1) for order, piece in enumerate(pieces) if piece)

    def dangers(self, text: str, may_continue: bool = True) -> list[int]:
        """Where a character has to be covered so that no join of this text with anything spells a special token.

        may_continue false: what stands before the text begins no special token.
        """
        if self._openings is None:
            return []
        places = [match.start() for match in self._openings.finditer(text)]
        if not may_continue:
            return places
        start = len(text) - len(text.lstrip())
        if start < len(text) and self._continues(text, start):
            places.insert(0, start)
        return places

    def _continues(self, text: str, start: int) -> bool:
        """Whether the text could finish, or be the middle of, a special token begun before it."""
        if any(text[start : start + length] in self._tails for length in self._tail_lengths):
            return True
        longest = self._tail_lengths[-1] if self._tail_lengths else 0
        return len(text) - start <= longest and text[start:].rstrip() in self._insides


class Disguise:
    """The twins chosen for one conversation."""

    def __init__(self, spellings: Spellings, texts: Iterable[str]) -> None:
        self._spellings = spellings
        used = set().union(*texts)
        free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        try:
            self._twins = {character: next(free) for character in spellings.alphabet}
        except StopIteration:
            raise TwinsExhausted("the messages use every private-use character of Unicode") from None
        self._originals = str.maketrans({twin: character for character, twin in self._twins.items()})

    def cover(self, text: str, may_continue: bool = True) -> str:
        """The text with nothing in it that spells, begins or, if it may, finishes a special token."""
        places = self._spellings.dangers(text, may_continue)
        if not places:
            return text
        characters = list(text)
        for place in places:
            characters[place] = self._twins[text[place]]
        return "".join(characters)

    def uncover(self, text: str) -> str:
        """The words as their author wrote them."""
        return text.translate(self._originals)


def _openings(texts: list[str]) -> Iterator[str]:
    """For each first character: it, where a special token's second character or the end of the text follows."""
    for first in sorted({text[0] for text in texts}):
        if first in texts:
            yield re.escape(first)  # a special token of one character
        else:
            seconds = "".join(sorted({re.escape(text[1]) for text in texts if text[0] == first}))
            yield rf"{re.escape(first)}(?=[{seconds}]|\s*\Z)"
