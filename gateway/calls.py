"""The table of open calls: which request ids are live here, and where the engine's words about them go.

A call is keyed by its request id and checked by its incarnation, so that what the engine still says about an earlier
use of an id reaches nobody. Knows no link and no gRPC; time comes in as an argument. Invariants: at most max_open
calls; a request id names at most one open call; incarnations only rise, and none is used twice.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field

from gateway.admission import Terms
from gateway.errors import CallError, failed
from gateway.histogram import SHORT_SECONDS, Histogram
from gateway.mailbox import Mailbox
from gateway.prompts import Prompt
from services.wire import columns
from services.wire.messages import FinishReason, Identity, Refused, TextBatch, TextDelta, TextEnd, TokenLogprobs
from tandem.v1 import errors_pb2 as reasons

Gap = tuple[float, int]  # when the text before came, and how many tokens this one has


@dataclass(eq=False, slots=True)
class Call:
    """One open call of n sequences. Times are the gateway's monotonic seconds."""

    identity: Identity
    n: int
    arrived: float
    mailbox: Mailbox
    constraint_field: str  # what is wrong where the engine finds that the constraint does not compile
    last_tokens: list[float]  # of each sequence; 0 before its first
    is_submitted: bool = False
    submitted: float | None = None
    first_token: float | None = None
    writing_since: float | None = None
    prompt: Prompt | None = None  # once it is tokenized
    prompt_logprobs: tuple[TokenLogprobs | None, ...] = ()  # of the first sequence, once it has its first token
    ends: dict[int, TextEnd] = field(default_factory=dict)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    abort: Callable[[CallError], Coroutine[None, None, None]] | None = None  # ends it although a write is stuck

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt; 0 while it is not tokenized."""
        return len(self.prompt.tokens) if self.prompt else 0

    @property
    def num_received_tokens(self) -> int:
        """Output tokens of all sequences so far."""
        return self.mailbox.num_received_tokens

    @property
    def needs_cancel(self) -> bool:
        """Whether the engine still works on it, as far as is known here."""
        return self.is_submitted and len(self.ends) < self.n

    def end(self, end: TextEnd) -> None:
        """Take in the end of one sequence; a sequence that did not end well ends the whole call."""
        self.ends[end.index] = end
        if end.reason is FinishReason.FAILED:
            self.mailbox.fail(failed(end.failure, end.detail, end.retry_after_ms, self.constraint_field))
        elif end.reason is FinishReason.CANCELLED:
            self.mailbox.fail(CallError(reasons.ERROR_REASON_CANCELLED, end.detail or "the call was cancelled"))
        else:
            self.mailbox.end(end)

    def receive(self, delta: TextDelta, now: float, gaps: dict[Gap, int]) -> bool:
        """Take in new text, and note when the text before it came; False when the client has left too much unread.

        What comes for a call that is over reaches nobody and counts for nothing.
        """
        if self.mailbox.is_over:
            return True
        before = self.last_tokens[delta.index]
        if before:
            gap = before, columns.length(delta.tokens)
            gaps[gap] = gaps.get(gap, 0) + 1
        elif self.first_token is None:
            self.first_token = now
        self.last_tokens[delta.index] = now
        if delta.prompt_logprobs and delta.index == 0:
            self.prompt_logprobs = delta.prompt_logprobs
        return self.mailbox.put(delta)


class Calls:
    """Every open call of one gateway."""

    def __init__(self, gateway: str, first_incarnation: int, max_open: int, max_unread_tokens: int) -> None:
        self._gateway = gateway
        self._incarnation = first_incarnation
        self._max_open = max_open
        self._max_unread_tokens = max_unread_tokens
        self._open: dict[str, Call] = {}
        self.gaps = Histogram(SHORT_SECONDS)  # between the tokens of all sequences

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Call]:
        return iter(tuple(self._open.values()))

    def open(self, terms: Terms, now: float, is_stream: bool) -> Call:
        """Enter a call; an empty id is replaced by a new one. Raises CallError when it cannot be taken."""
        if len(self._open) >= self._max_open:
            raise CallError(reasons.ERROR_REASON_TOO_MANY_CALLS, f"{self._max_open} calls are open")
        self._incarnation += 1
        request_id = terms.request_id or f"{self._gateway}-{self._incarnation:x}"
        if request_id in self._open:
            raise CallError(reasons.ERROR_REASON_DUPLICATE_REQUEST_ID, f"a live call has the request_id {request_id!r}")
        identity = Identity(self._gateway, request_id, self._incarnation)
        mailbox = Mailbox(terms.n, self._max_unread_tokens if is_stream else None, terms.joins_prompt_logprobs)
        call = Call(identity, terms.n, now, mailbox, terms.constraint_field, [0.0] * terms.n)
        self._open[request_id] = call
        return call

    def find(self, request_id: str) -> Call | None:
        """The open call with this id."""
        return self._open.get(request_id)

    def close(self, call: Call) -> None:
        """Forget a call; whatever comes for it from now on is dropped. Idempotent."""
        if self._open.get(call.identity.request) is call:
            del self._open[call.identity.request]
        call.closed.set()

    async def wait_for_id(self, request_id: str, at_most_s: float) -> None:
        """Until no open call has this id, or at_most_s has passed."""
        call = self._open.get(request_id)
        if call is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(call.closed.wait(), at_most_s)

    def deliver(self, batch: TextBatch, now: float) -> list[Call]:
        """Hand each delta and each end to its call; those of closed calls are dropped. Returns who reads too slowly."""
        slow = []
        gaps: dict[Gap, int] = {}
        for delta in batch.deltas:
            call = self._open.get(delta.request)
            if call is None or call.identity.incarnation != delta.incarnation:
                continue
            if not call.receive(delta, now, gaps):
                slow.append(call)
        self._observe(gaps, now)
        for end in batch.ends:
            call = self._open.get(end.request)
            if call is not None and call.identity.incarnation == end.incarnation:
                call.end(end)
        return slow

    def _observe(self, gaps: dict[Gap, int], now: float) -> None:
        """Count the gaps before a batch, most of which are the same; tokens that come together share theirs evenly."""
        for (before, num_tokens), times in gaps.items():
            if num_tokens:
                self.gaps.observe((now - before) / num_tokens, num_tokens * times)

    def refuse(self, refused: Refused) -> None:
        """The engine never took this call."""
        call = self._open.get(refused.identity.request)
        if call is not None and call.identity == refused.identity:
            call.is_submitted = False
            call.mailbox.fail(failed(refused.failure, refused.detail))

    def fail_all(self, error: CallError) -> None:
        """End every open call with the same error."""
        for call in self:
            call.mailbox.fail(error)

    def stuck(self, now: float, failed_s: float, stall_s: float) -> list[Call]:
        """The calls with a write that does not end: for failed_s when the call has failed, for stall_s in any case."""
        return [
            call
            for call in self._open.values()
            if call.writing_since is not None
            and now - call.writing_since > (stall_s if call.mailbox.error is None else failed_s)
        ]
