"""The scheduler's shell: messages in, the core's verbs, messages out.

One turn takes each link's messages in their order, absorbs results one by one, and after each plans and sends before
anything else is told: the executor never waits for the text side. Sends never block; an outlet at its bound is a bug,
since the window bounds plans and credit bounds batches (a gateway that misses a Load misses nothing). Knows no policy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from services.runtime.settings import SchedulerSettings
from services.scheduler.core.policy import FAIR, FCFS, STATIC, Policy, priority
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.state import Limits
from services.wire.link import Inlet, LinkFull, Outlet
from services.wire.liveness import silent_senders
from services.wire.messages import (
    Cancel,
    Control,
    ControlReply,
    ControlVerb,
    Credit,
    Draining,
    EngineDead,
    EngineReady,
    FeedbackMessage,
    Hello,
    PlanMessage,
    Ready,
    ResultMessage,
    StatusMessage,
    StepResult,
    StopHit,
    Submit,
    SubmitMessage,
    TokenMessage,
)

LOAD_EVERY_NS = 1_000_000_000


@dataclass(frozen=True)
class SchedulerLinks:
    """The scheduler's ends of its links; one status outlet for each gateway, by name."""

    submit: Inlet[SubmitMessage]
    result: Inlet[ResultMessage]
    feedback: Inlet[FeedbackMessage]
    plan: Outlet[PlanMessage]
    tokens: Outlet[TokenMessage]
    status: Mapping[str, Outlet[StatusMessage]]

    def outlets(self) -> tuple[Outlet[Any], ...]:
        return (self.plan, self.tokens, *self.status.values())


def limits_from(settings: SchedulerSettings) -> Limits:
    """The core's bounds."""
    return Limits(
        depth=settings.depth,
        token_budget=settings.token_budget,
        chunk_size=settings.chunk_size or settings.token_budget,
        max_num_seqs=settings.max_num_seqs,
        max_waiting=settings.max_waiting,
        max_unread=settings.max_unread,
        prefix_cache=settings.prefix_cache,
        preemption=settings.preemption,
        victim=settings.victim,
        forecast=settings.forecast,
        prefill_quantum=settings.prefill_quantum,
        inter_token_us=round(settings.inter_token_ms * 1000),
    )


def policy_from(settings: SchedulerSettings) -> Policy:
    """The order of service."""
    match settings.policy:
        case "fcfs":
            return FCFS
        case "priority":
            return priority(round(settings.aging_s * 1e9))
        case "fair":
            return FAIR
        case "static":
            return STATIC


class SchedulerService:
    """Drive with `turn`; `clock` gives CLOCK_MONOTONIC nanoseconds."""

    def __init__(self, settings: SchedulerSettings, links: SchedulerLinks, clock: Callable[[], int]) -> None:
        self.core = Scheduler(limits_from(settings), policy_from(settings))
        self._links = links
        self._clock = clock
        self._log = structlog.get_logger()
        self._ready: Ready | None = None
        self._next_load = 0

    def turn(self) -> None:
        """Take in all that has arrived and send all that follows from it. Never blocks."""
        now = self._clock()
        for message in self._links.submit.receive():
            self._on_submit_link(message, now)
        for feedback in self._links.feedback.receive():
            self._on_feedback(feedback, now)
        self.core.expire(now)
        for result in self._links.result.receive():
            self._on_result(result)
            self._advance()
        self._advance()
        if now >= self._next_load:
            self._next_load = now + LOAD_EVERY_NS
            self._tell_load()

    def next_event_ns(self) -> int:
        """When the next turn is due if no message arrives."""
        deadline = self.core.next_deadline()
        return self._next_load if deadline is None else min(deadline, self._next_load)

    def silent_peer(self, now_s: float, death_s: float) -> str:
        """The name of a peer that was heard once and not in the last death_s seconds, or ""."""
        links = self._links
        for name, inlet in (("gateway", links.submit), ("executor", links.result), ("detokenizer", links.feedback)):
            if silent_senders(inlet, now_s, death_s):
                self._log.error("peer.silent", peer=name)
                return name
        return ""

    def tell_dead(self, detail: str) -> None:
        """Tell every gateway that the engine is over."""
        for outlet in self._links.status.values():
            outlet.send(EngineDead(detail))

    def _advance(self) -> None:
        """Fill the window, then tell the text side."""
        while (plan := self.core.plan(self._clock())) is not None:
            self._links.plan.send(plan)
        batch = self.core.take_batch()
        if batch is not None:
            self._links.tokens.send(batch)
        self.core.tidy()

    def _on_submit_link(self, message: SubmitMessage, now: int) -> None:
        match message:
            case Submit():
                refused = self.core.submit(message, now)
                if refused is not None:
                    self._links.status[message.identity.gateway].send(refused)
                self._log.debug("request.submitted", request_id=message.identity.request)
            case Cancel():
                self.core.cancel(message.identity, now)
                self._log.debug("request.cancelled", request_id=message.identity.request)
            case Control():
                self._on_control(message, now)

    def _on_feedback(self, message: FeedbackMessage, now: int) -> None:
        match message:
            case StopHit():
                self.core.stop_hit(message, now)
            case Credit():
                self.core.credit(message)

    def _on_result(self, message: ResultMessage) -> None:
        now = self._clock()
        match message:
            case Ready():
                self._log.info("executor.ready", epoch=message.epoch, instance=message.instance)
                hello = self.core.executor_ready(message, now)
                if hello is None and self.core.state.is_open:
                    self._on_open(message)
            case StepResult():
                hello = self.core.absorb(message, now)
                if hello is not None:
                    self._log.error("step.failed", step_id=message.step, epoch=message.epoch, detail=message.detail)
        if hello is not None:
            self._send_hello(hello)

    def _send_hello(self, hello: Hello) -> None:
        self._links.plan.send(hello)
        self._log.info("epoch.opened", epoch=hello.epoch)

    def _on_open(self, ready: Ready) -> None:
        """Planning may begin; the gateways are told once for each instance."""
        if self._ready is not None and self._ready.instance == ready.instance:
            return
        self._ready = ready
        usable = min(self.core.state.limits.max_num_seqs, ready.max_rows)
        for outlet in self._links.status.values():
            outlet.send(EngineReady(ready.card, ready.num_blocks - 1, ready.block_size, usable))

    def _on_control(self, control: Control, now: int) -> None:
        match control.verb:
            case ControlVerb.LOAD:
                self._tell_load()
            case ControlVerb.DRAIN:
                self.core.drain()
                for outlet in self._links.status.values():
                    outlet.send(Draining())
            case ControlVerb.PAUSE | ControlVerb.RESUME:
                self.core.pause(control.verb == ControlVerb.PAUSE)
            case ControlVerb.CANCEL_ALL:
                self.core.cancel_all(now)
            case ControlVerb.FLUSH_CACHE:
                self.core.flush_cache()
        self._links.status[control.gateway].send(ControlReply(control.number, True))

    def _tell_load(self) -> None:
        load = self.core.load(self._clock())
        for gateway, outlet in self._links.status.items():
            try:
                outlet.send(load)
            except LinkFull:
                self._log.warning("load.skipped", gateway=gateway)
