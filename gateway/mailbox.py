"""One call's mailbox: what the engine has put out for it and its client has not taken yet.

Deltas that arrive while the client is busy merge, so a client that is slower than the engine gets fewer, longer
messages. Knows no link, no gRPC and no clock. Invariants: nothing is lost or reordered within a sequence; after the
end, or an error, nothing more is taken in.
"""

import asyncio
from dataclasses import replace

from gateway.errors import CallError
from services.wire import columns
from services.wire.messages import TextDelta, TextEnd, TokenLogprobs


class Piece:
    """What is new of one sequence: text, tokens, and its end if it has ended."""

    __slots__ = ("end", "index", "is_first", "logprobs", "texts", "tokens")

    def __init__(self, index: int, is_first: bool) -> None:
        self.index = index
        self.is_first = is_first
        self.texts: list[str] = []
        self.tokens: list[bytes] = []  # columns
        self.logprobs: list[TokenLogprobs] = []
        self.end: TextEnd | None = None

    @property
    def text(self) -> str:
        """The new text."""
        return "".join(self.texts)

    @property
    def token_column(self) -> bytes:
        """The new token ids, one column."""
        return b"".join(self.tokens)


class Mailbox:
    """Filled by the engine's side, emptied by the one task that serves the call.

    max_tokens bounds what may lie here unread; None for a call that is answered once and whose bound is therefore
    its own length. waits_for_first: nothing is to be taken before sequence 0 has its first token, since it brings what
    every sequence begins with.
    """

    __slots__ = (
        "_max_tokens",
        "_num_tokens",
        "_num_unended",
        "_pieces",
        "_started",
        "_waiter",
        "_waits_for_first",
        "error",
    )

    def __init__(self, n: int, max_tokens: int | None, waits_for_first: bool = False) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._num_unended = n
        self._pieces: dict[int, Piece] = {}
        self._started: set[int] = set()
        self.error: CallError | None = None  # what ends the call, once what lies here is taken
        self._waiter: asyncio.Future[None] | None = None
        self._waits_for_first = waits_for_first

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come: every sequence has ended, or the call has failed."""
        return self._num_unended == 0 or self.error is not None

    def put(self, delta: TextDelta) -> bool:
        """Take in new text; False when more lies here now than the bound allows."""
        if self.is_over:
            return True
        piece = self._piece(delta.index)
        piece.texts.append(delta.text)
        piece.tokens.append(delta.tokens)
        piece.logprobs.extend(delta.logprobs)
        self._num_tokens += columns.length(delta.tokens)
        if self._max_tokens is None:
            return True
        self._waits_for_first = self._waits_for_first and delta.index != 0
        if self._waits_for_first:
            return True
        self._wake()
        return self._num_tokens <= self._max_tokens

    def end(self, end: TextEnd) -> None:
        """Take in the end of one sequence."""
        if self.is_over:
            return
        self._piece(end.index).end = end
        self._num_unended -= 1
        if self._max_tokens is not None or self.is_over:
            self._wake()

    def fail(self, error: CallError) -> None:
        """Let the call end with an error, once what lies here is taken. The first error counts; none after the end."""
        if not self.is_over:
            self.error = error
            if self._waits_for_first:
                self.discard()  # it lacks its beginning, and nobody waits for that any more
            self._wake()

    def discard(self) -> None:
        """Let go of what lies here untaken."""
        self._pieces.clear()
        self._num_tokens = 0

    async def take(self) -> list[Piece]:
        """What is new, at most one piece a sequence, ended ones last; waits for something. Raises the call's error.

        A mailbox without a bound waits until everything is there.
        """
        while not self._is_ready():
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self.error is not None and (self._max_tokens is None or not self._pieces):
            # A copy: one error may end many calls, and each gives it a traceback of its own.
            raise replace(self.error)
        pieces = list(self._pieces.values())
        self.discard()
        if len(pieces) > 1:
            pieces.sort(key=lambda piece: (piece.end is not None, piece.index))
        return pieces

    def _is_ready(self) -> bool:
        return self.is_over or (self._max_tokens is not None and bool(self._pieces) and not self._waits_for_first)

    def _piece(self, index: int) -> Piece:
        piece = self._pieces.get(index)
        if piece is None:
            piece = self._pieces[index] = Piece(index, is_first=index not in self._started)
            self._started.add(index)
        return piece

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
