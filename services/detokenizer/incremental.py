"""Token ids into text, a token at a time: the exact text of the whole, and nothing is ever taken back.

Tokens are bytes and bytes are UTF-8: what is complete comes out, what is begun waits for its next byte, what can never
become a character comes out as U+FFFD. The text of a prompt is unknown here, so a character begun in it shows as
U+FFFD. Knows nothing of stop strings and of messages. Invariant: the texts of feed and the final flush, joined, are
the decoding of all the bytes at once.
"""

from codecs import utf_8_decode
from collections.abc import Collection, Sequence


class TokenTable:
    """What each token adds to a text, prepared once for all sequences that treat special tokens alike."""

    def __init__(self, token_bytes: Sequence[bytes], skipped: Collection[int] = ()) -> None:
        """token_bytes: one entry an id; skipped: the ids that add nothing."""
        self.data = list(token_bytes)
        for token_id in skipped:
            self.data[token_id] = b""
        # The fast way: a token of whole characters needs no decoding while nothing waits. None for all others.
        self.texts = [_whole(data) for data in self.data]


class Tables:
    """A vocabulary as this service needs it; immutable, shared by all sequences."""

    def __init__(self, token_bytes: Sequence[bytes], special_ids: Collection[int]) -> None:
        self.token_bytes = token_bytes
        self.showing = TokenTable(token_bytes)
        self.skipping = TokenTable(token_bytes, special_ids)


class IncrementalDecoder:
    """The half-decoded text of one sequence."""

    __slots__ = ("_data", "_texts", "_waiting")

    def __init__(self, table: TokenTable) -> None:
        self._data = table.data
        self._texts = table.texts
        self._waiting = b""  # the first bytes of one character, at most three

    def feed(self, token_id: int) -> str:
        """The text that is complete with this token; may be empty."""
        try:
            if not self._waiting:
                whole = self._texts[token_id]
                if whole is not None:
                    return whole
            data = self._waiting + self._data[token_id]
        except IndexError:
            return ""  # a model may have rows beyond its vocabulary; they stand for nothing
        text, num_used = utf_8_decode(data, "replace", False)
        self._waiting = data[num_used:]
        return text

    def flush(self) -> str:
        """The text of a character that will not be completed any more."""
        text, _ = utf_8_decode(self._waiting, "replace", True)
        self._waiting = b""
        return text


def _whole(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
