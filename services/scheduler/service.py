"""The scheduler's shell: messages in, the core's verbs, messages out.

One turn takes each link's messages in their order, absorbs results one by one, and after each plans and sends before
anything else is told: the executor never waits for the text side. Sends never block; an outlet at its bound is a bug,
since the window bounds plans and credit bounds batches (a gateway that misses a Load misses nothing). Knows no policy.

An executor may die: it is known by its silence, by a plan that is not taken, or by the Ready of the one that takes its
place, whichever comes first. Requests wait meanwhile. Of any other peer the silence is fatal.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from services.runtime.settings import SchedulerSettings
from services.scheduler.core.policy import FAIR, FCFS, STATIC, Policy, priority
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.state import Limits
from services.scheduler.orders import Orders
from services.wire.link import Inlet, LinkFull, Outlet, RenewableOutlet
from services.wire.liveness import silent_senders
from services.wire.messages import (
    Cancel,
    Control,
    Credit,
    EngineDead,
    EngineReady,
    FeedbackMessage,
    PlanMessage,
    Prepared,
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
    plan: RenewableOutlet[PlanMessage]
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
        head_start=settings.head_start,
        max_preparing=settings.max_preparing,
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
    """Drive with `turn`; `clock` gives CLOCK_MONOTONIC nanoseconds. on_lost is told the instance of a lost executor."""

    def __init__(
        self,
        settings: SchedulerSettings,
        links: SchedulerLinks,
        clock: Callable[[], int],
        on_lost: Callable[[int], None] = lambda instance: None,
    ) -> None:
        self.core = Scheduler(limits_from(settings), policy_from(settings))
        self._links = links
        self._clock = clock
        self._on_lost = on_lost
        self._log = structlog.get_logger()
        self._ready: Ready | None = None
        self._absence_s = settings.executor_absence_s
        self._absent_since: float | None = None
        self._next_load = 0
        self._orders = Orders(self.core, links.status, links.tokens, self._tell_executor, self._tell_load)

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
        """The name of a peer without which the server cannot go on, or "".

        A gateway or the detokenizer, heard once and not in the last death_s seconds; an executor, when none has been
        at work for executor_absence_s.
        """
        self._look_for_executor(now_s, death_s)
        for name, inlet in (("gateway", self._links.submit), ("detokenizer", self._links.feedback)):
            if silent_senders(inlet, now_s, death_s):
                self._log.error("peer.silent", peer=name)
                return name
        if self._absent_since is not None and now_s - self._absent_since > self._absence_s:
            self._log.error("executor.absent", seconds=self._absence_s)
            return "executor"
        return ""

    def tell_dead(self, detail: str) -> None:
        """Tell every gateway that the engine is over."""
        for outlet in self._links.status.values():
            outlet.send(EngineDead(detail))

    def _look_for_executor(self, now_s: float, death_s: float) -> None:
        """Of two that were heard the silent one is the former; when nobody is heard, the present one is lost."""
        result = self._links.result
        silent = silent_senders(result, now_s, death_s)
        for sender in silent:
            result.forget(sender)
        if silent and not result.last_heard():
            self._lose_executor("silent")
        state = self.core.state
        if state.is_open or state.capacity is None:  # before the first Ready there is nothing that was lost
            self._absent_since = None
        elif self._absent_since is None:
            self._absent_since = now_s

    def _lose_executor(self, why: str) -> None:
        """Every request waits for another executor; this one, should it live after all, hears nothing any more."""
        instance = self.core.state.instance
        if instance:
            self._log.error("executor.lost", instance=instance, why=why)
            self.core.executor_lost(instance, self._clock())
            self._links.plan.close()
            self._on_lost(instance)

    def _advance(self) -> None:
        """Fill the window, then tell the text side."""
        for message in self.core.take_constraints():
            if self.core.state.is_open:
                self._tell_executor(message)
        while (plan := self.core.plan(self._clock())) is not None:
            self._tell_executor(plan)
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
                self._orders.carry_out(message, now)

    def _on_feedback(self, message: FeedbackMessage, now: int) -> None:
        match message:
            case StopHit():
                self.core.stop_hit(message, now)
            case Credit():
                self.core.credit(message)

    def _on_result(self, message: ResultMessage) -> None:
        now = self._clock()
        hello = None
        match message:
            case Ready():
                self._log.info("executor.ready", epoch=message.epoch, instance=message.instance)
                hello = self.core.executor_ready(message, now)
                if hello is not None:
                    self._links.plan.renew()
                elif self.core.state.is_open:
                    self._on_open(message)
            case StepResult():
                hello = self.core.absorb(message, now)
                if hello is not None:
                    self._log.error("step.failed", step_id=message.step, epoch=message.epoch, detail=message.detail)
            case Prepared():
                self.core.prepared(message, now)
        if hello is not None:
            self._log.info("epoch.opened", epoch=hello.epoch)
            self._tell_executor(hello)
            self._orders.greet_executor()

    def _tell_executor(self, message: PlanMessage) -> None:
        """The window bounds what waits to be taken: an outlet at its bound is one whose receiver is gone."""
        try:
            self._links.plan.send(message)
        except LinkFull:
            self._lose_executor("takes no plan")

    def _on_open(self, ready: Ready) -> None:
        """Planning may begin; the gateways are told once for each instance."""
        is_told = self._ready is not None and self._ready.instance == ready.instance
        if is_told or ready.instance != self.core.state.instance:
            return
        self._ready = ready
        usable = min(self.core.state.limits.max_num_seqs, ready.max_rows)
        self._tell_load()  # first: whoever finds the engine ready must not balance by blocks it had not yet
        for outlet in self._links.status.values():
            outlet.send(EngineReady(ready.card, ready.num_blocks - 1, ready.block_size, usable))

    def _tell_load(self) -> None:
        load = self.core.load(self._clock())
        for gateway, outlet in self._links.status.items():
            try:
                outlet.send(load)
            except LinkFull:
                self._log.warning("load.skipped", gateway=gateway)
