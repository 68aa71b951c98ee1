"""The gateway's heart: open calls on one side, the engine's links on the other, no socket of its own.

Takes calls in (`call`, `submit`), lets them go (`release`), and absorbs what the engine says. Whoever drives it feeds
it messages and time, so a test can do so by hand. Knows no gRPC server. Invariants: a call that leaves before its last
sequence has ended is cancelled at the engine at once; a Cancel that the link does not take is kept and sent later,
never dropped.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import structlog

from gateway import accounts
from gateway.admission import Terms
from gateway.calls import Call, Calls
from gateway.engine import Engine, Phase
from gateway.errors import CallError
from gateway.orders import Orders
from gateway.pacing import Pace, Pacer
from gateway.prompts import Prompt
from gateway.summary import summary
from services.runtime.settings import GatewaySettings
from services.wire.link import LinkFull, Outlet
from services.wire.messages import (
    Cancel,
    ControlReply,
    Draining,
    EngineDead,
    EngineReady,
    Load,
    Refused,
    StatusMessage,
    SubmitMessage,
    TextBatch,
)
from tandem.v1 import errors_pb2 as reasons

log = structlog.get_logger()

# Between a call's failure and the moment its client is told of it over a write that does not end.
STUCK_S = 0.5
# What passes when a call ends, and the bounds of what a client is told to wait for that.
LACKS_ROOM = (reasons.ERROR_REASON_TOO_MANY_CALLS, reasons.ERROR_REASON_QUEUE_FULL)
MIN_RETRY_S, MAX_RETRY_S = 0.1, 30.0


class Gateway:
    """The state of one gateway. clock: monotonic seconds."""

    def __init__(
        self,
        settings: GatewaySettings,
        submits: Outlet[SubmitMessage],
        threads: Executor,
        clock: Callable[[], float],
        first_incarnation: int,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.engine = Engine(settings, threads, self._phase_changed)
        self.calls = Calls(settings.name, first_incarnation, settings.max_open_calls, settings.max_unread_tokens)
        self.pacer = Pacer(settings.coalesce_ms / 1000, settings.max_messages_per_s, clock)
        self.is_leaving = False  # health says so before calls are refused
        self.on_phase: Callable[[Phase], None] = lambda phase: None
        self.orders = Orders(settings.name, submits, settings.order_timeout_s)
        self._submits = submits
        self._unsent: deque[Cancel] = deque()
        self._aborts: set[asyncio.Task[None]] = set()

    @contextmanager
    def call(self, terms: Terms, is_stream: bool) -> Iterator[Call]:
        """An open call; however the block is left, the engine stops working for it. Raises CallError."""
        try:
            call = self.calls.open(terms, self.clock(), is_stream)
        except CallError as error:
            raise replace(error, retry_after_s=self._room_in_s(error)) from error
        if is_stream:
            pace = terms.message_bounds
            call.mailbox.pace = Pace(self.pacer, call.identity.incarnation, pace.max_tokens, pace.max_delay_s)
        accounts.current().open(call, terms)
        try:
            yield call
        except CallError as error:
            raise replace(error, trailers=self._trailers(call)) from error
        finally:
            self.release(call)

    @property
    def is_serving(self) -> bool:
        """Whether calls are taken, and will be for a while: what health tells whoever routes them."""
        return self.engine.phase is Phase.READY and not self.is_leaving

    def submit(self, call: Call, terms: Terms, prompt: Prompt, remaining_s: float | None) -> None:
        """Hand an open call to the engine; raises CallError. remaining_s: until the deadline of its gRPC, if any."""
        # Asked anew: the engine may have gone while a long prompt was tokenized.
        admission = self.engine.served().admission
        call.prompt = prompt
        if terms.timeout_s is not None:
            own = call.arrived + terms.timeout_s - self.clock()
            remaining_s = own if remaining_s is None else min(own, remaining_s)
        remaining_ms = None if remaining_s is None else max(0, int(remaining_s * 1000))
        try:
            self._submits.send(admission.submit(terms, call.identity, prompt.tokens, remaining_ms))
        except LinkFull as error:
            full = CallError(reasons.ERROR_REASON_QUEUE_FULL, "the engine takes no more requests now")
            raise replace(full, retry_after_s=self._room_in_s(full)) from error
        call.is_submitted, call.submitted = True, self.clock()
        log.debug("request.submitted", request_id=call.identity.request, num_prompt_tokens=call.num_prompt_tokens)

    def release(self, call: Call) -> None:
        """Let a call go, and tell the engine if it still works for it. Idempotent."""
        self.calls.close(call)
        self._stop_work(call)

    def cancel(self, request_id: str, why: str) -> bool:
        """End an open call for its client and for the engine, dropping what is untold; False when none is open."""
        call = self.calls.find(request_id)
        if call is None:
            return False
        call.mailbox.break_off(CallError(reasons.ERROR_REASON_CANCELLED, why))
        self._stop_work(call)
        return True  # it stays in the table until its client has been told, or does not read: see `tick`

    def absorb_texts(self, batches: Iterable[TextBatch]) -> None:
        """Hand out new text and ends."""
        now = self.clock()
        self.engine.text_heard()
        for batch in batches:
            self.pacer.batch(now, len(batch.deltas))
            for call in self.calls.deliver(batch, now):
                self._abandon(call, f"more than {self.settings.max_unread_tokens} tokens lie unread")

    def absorb_statuses(self, statuses: Iterable[StatusMessage]) -> None:
        """Follow the state of the engine."""
        for message in statuses:
            match message:
                case Refused():
                    self.calls.refuse(message)
                case EngineReady():
                    self.engine.executor_ready(message)
                case Load():
                    self.engine.loads.note(message)
                    log.debug("engine.load", **msgspec.structs.asdict(message))
                case ControlReply():
                    self.orders.answered(message)
                case Draining():
                    self.engine.drain()
                case EngineDead():
                    self.engine.die(message.detail)

    def tick(self, now: float) -> None:
        """What is due by the clock: cancels that were not sent, clients that do not read."""
        self._flush()
        for call in self.calls.stuck(now, STUCK_S, self.settings.stall_s):
            self._abandon(call, f"nothing was read for {now - (call.writing_since or now):.1f} s")

    def _stop_work(self, call: Call) -> None:
        if call.needs_cancel:
            call.is_submitted = False
            self._unsent.append(Cancel(call.identity))
            self._flush()

    def _abandon(self, call: Call, why: str) -> None:
        """End a call whose client does not read: the engine's work now, the client's wait as soon as it reads again."""
        error = call.mailbox.error or CallError(reasons.ERROR_REASON_SLOW_READER, why)
        call.mailbox.break_off(error)
        self.release(call)
        if call.abort is not None:
            told = replace(error, trailers=self._trailers(call))
            abort = asyncio.get_running_loop().create_task(call.abort(told))
            self._aborts.add(abort)
            abort.add_done_callback(self._aborts.discard)

    def _room_in_s(self, error: CallError) -> float | None:
        """When another try may find room, by the rate at which calls end; None where that is not what is lacking."""
        load = self.engine.loads.last
        if error.reason not in LACKS_ROOM or load is None or not load.drain_rate:
            return None
        return min(max(1 / load.drain_rate, MIN_RETRY_S), MAX_RETRY_S)

    def _phase_changed(self, phase: Phase) -> None:
        log.info("engine.phase", phase=phase.name.lower())
        if phase is Phase.DEAD:
            self.calls.fail_all(self.engine.refusal())
        self.on_phase(phase)

    def _flush(self) -> None:
        while self._unsent:
            try:
                self._submits.send(self._unsent[0])
            except LinkFull:
                return
            self._unsent.popleft()

    def _trailers(self, call: Call) -> tuple[tuple[str, str], ...]:
        return (("x-request-id", call.identity.request), *summary(call, self.clock()).trailers())
