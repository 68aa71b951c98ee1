"""One call's mailbox: what the engine has put out for it and its client has not taken yet.

Deltas that arrive while the client is busy merge, so a client that is slower than the engine gets fewer, longer
messages; so do those that the call's pace holds back (pacing.py). Knows no link, no gRPC and no clock. Invariants:
nothing is lost or reordered within a sequence; after the end, or an error, nothing more is taken in; whoever takes
gets something, or an error, until it has all the ends.
"""

import asyncio
from dataclasses import replace

from gateway.errors import CallError
from gateway.pacing import Pace
from services.wire import columns
from services.wire.messages import TextDelta, TextEnd, TokenLogprobs


class Piece:
    """What is new of one sequence: text, tokens, and its end if it has ended."""

    __slots__ = ("deltas", "end", "index", "is_first", "num_tokens")

    def __init__(self, index: int, is_first: bool) -> None:
        self.index = index
        self.is_first = is_first
        self.num_tokens = 0
        self.deltas: list[TextDelta] = []
        self.end: TextEnd | None = None

    @property
    def text(self) -> str:
        """The new text."""
        return "".join([delta.text for delta in self.deltas])

    @property
    def token_column(self) -> bytes:
        """The new token ids, one column."""
        return b"".join([delta.tokens for delta in self.deltas])

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """Of the new tokens, as far as they were asked for."""
        return [token for delta in self.deltas for token in delta.logprobs]


class Mailbox:
    """Filled by the engine's side, emptied by the one task that serves the call.

    max_tokens bounds what may lie here unread; None for a call that is answered once and whose bound is therefore
    its own length. waits_for_first: nothing is to be taken before sequence 0 has its first token, since it brings what
    every sequence begins with. pace: how messages gather what comes; without one nothing is held.
    """

    __slots__ = (
        "_full",
        "_is_ripe",
        "_max_tokens",
        "_num_tokens",
        "_num_unended",
        "_pieces",
        "_started",
        "_waiter",
        "_waits_for_first",
        "error",
        "is_over",
        "num_received_tokens",
        "pace",
    )

    def __init__(self, n: int, max_tokens: int | None, waits_for_first: bool = False) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._num_unended = n
        self._full: list[Piece] = []  # those that may not grow, before all others
        self._pieces: dict[int, Piece] = {}
        self._is_ripe = False  # whether what lies here may go
        self._started: set[int] = set()
        self.num_received_tokens = 0  # so far
        self.is_over = False  # whether nothing more will come: every sequence has ended, or the call has failed
        self.error: CallError | None = None  # what ends the call, once what lies here is taken
        self._waiter: asyncio.Future[None] | None = None
        self._waits_for_first = waits_for_first
        self.pace: Pace | None = None

    def put(self, delta: TextDelta) -> bool:
        """Take in new text; False when more lies here now than the bound allows."""
        # The one path that every token takes: no call that it can do without.
        if self.is_over:
            return True
        num_new = columns.length(delta.tokens)
        pace, piece = self.pace, self._pieces.get(delta.index)
        if piece is None or (
            pace is not None and pace.max_tokens is not None and piece.num_tokens + num_new > pace.max_tokens
        ):
            piece = self._new_piece(delta.index)
        piece.deltas.append(delta)
        piece.num_tokens += num_new
        self.num_received_tokens += num_new
        self._num_tokens += num_new
        if self._max_tokens is None:
            return True
        if self._waits_for_first:
            self._waits_for_first = delta.index != 0
        if not self._is_ripe and (pace is None or pace.is_due(self, piece.num_tokens)):
            self._is_ripe = True
        if self._is_ripe and self._waiter is not None:
            self._wake()
        return self._num_tokens <= self._max_tokens

    def end(self, end: TextEnd) -> None:
        """Take in the end of one sequence."""
        if self.is_over:
            return
        piece = self._pieces.get(end.index) or self._new_piece(end.index)
        piece.end = end
        self._num_unended -= 1
        self.is_over = self._num_unended == 0
        self._is_ripe = True
        if self._max_tokens is not None or self.is_over:
            self._wake()

    def fail(self, error: CallError) -> None:
        """Let the call end with an error, once what lies here is taken. The first error counts; none after the end."""
        if not self.is_over:
            self.error, self.is_over = error, True
            if self._waits_for_first:
                self.discard()  # it lacks its beginning, and nobody waits for that any more
            self._wake()

    def break_off(self, error: CallError) -> None:
        """Let the call end with an error at once, and drop what lies here. The first error counts; none when all has
        been taken, the ends with it."""
        if self.error is None and (self._num_unended or self._pieces):
            self.error, self.is_over = error, True
        self.discard()
        self._wake()

    def ripen(self, since: int) -> None:
        """What has been held since this batch has waited long enough."""
        if self.pace is not None and self.pace.since == since:
            self._is_ripe = True
            self._wake()

    def discard(self) -> None:
        """Let go of what lies here untaken."""
        self._pieces.clear()
        self._full.clear()
        self._num_tokens = 0
        self._is_ripe = False
        if self.pace is not None:
            self.pace.since = None

    async def take(self) -> list[Piece]:
        """What is new, ended sequences last; waits for something. Raises the call's error.

        One piece a sequence, or as many as the client's bound on a message asks for. A mailbox without a bound waits
        until everything is there.
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
        if len(pieces) > 1:
            pieces.sort(key=lambda piece: (piece.end is not None, piece.index))
        taken = [*self._full, *pieces]
        self.discard()
        return taken

    def _is_ready(self) -> bool:
        return self.is_over or (self._max_tokens is not None and self._is_ripe and not self._waits_for_first)

    def _new_piece(self, index: int) -> Piece:
        """The piece of a sequence that takes in what comes next; the one before it, if any, grows no more."""
        before = self._pieces.get(index)
        if before is not None:
            self._full.append(before)
        piece = self._pieces[index] = Piece(index, is_first=index not in self._started)
        self._started.add(index)
        return piece

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
