"""A scheduler and an executor, driven event by event; the text side's laws are checked as batches arrive."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from services.scheduler.core import invariants
from services.scheduler.core.policy import FCFS, Policy
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.state import Limits
from services.wire import columns
from services.wire.messages import (
    Close,
    Constraint,
    Credit,
    Deltas,
    FinishReason,
    Hello,
    Identity,
    Output,
    Prepared,
    Ready,
    Refused,
    Sampling,
    SequenceKey,
    Start,
    StepPlan,
    StepResult,
    StopHit,
    Stopping,
    Submit,
)
from tests.unit.scheduler.executor_model import ExecutorModel, continuation

EOS = 1  # the executor model never draws it


def limits(
    depth: int = 2,
    token_budget: int = 64,
    chunk_size: int = 64,
    max_num_seqs: int = 16,
    max_waiting: int = 1000,
    max_unread: int = 1000,
    **choices: Any,
) -> Limits:
    return Limits(depth, token_budget, chunk_size, max_num_seqs, max_waiting, max_unread, **choices)


def submit_message(
    name: str,
    prompt: list[int],
    *,
    max_tokens: int | None = 8,
    stop_ids: tuple[int, ...] = (),
    min_tokens: int = 0,
    seed: int = 0,
    n: int = 1,
    incarnation: int = 1,
    gateway: str = "g",
    remaining_ms: int | None = None,
    priority: int = 0,
    tenant: str = "",
    salt: str = "",
    prompt_logprobs: int | None = None,
    constraint: Constraint | None = None,
) -> Submit:
    stops = columns.pack(stop_ids)
    return Submit(
        Identity(gateway, name, incarnation),
        columns.pack(prompt),
        Sampling(min_tokens=min_tokens, stop_token_ids=stops, prompt_logprobs=prompt_logprobs, constraint=constraint),
        Stopping(max_tokens, min_tokens, stops),
        Output(),
        seed=seed,
        n=n,
        remaining_ms=remaining_ms,
        priority=priority,
        tenant=tenant,
        cache_salt=salt,
    )


class Executor(Protocol):
    """What the rig drives: plans queue up in `plans`; `step` runs the oldest and returns its result."""

    plans: deque[StepPlan]

    def ready(self, epoch: int) -> Ready: ...
    def hello(self, hello: Hello) -> Ready: ...
    def receive(self, plan: StepPlan) -> None: ...
    def step(self, *, fails: bool = False, poison: int | None = None) -> StepResult: ...


@dataclass(frozen=True)
class Shape:
    """What an executor has; copy_lag: steps a copy outlasts the one that ordered it."""

    num_blocks: int = 64
    block_size: int = 4
    max_rows: int = 16
    context_length: int = 512
    num_host_blocks: int = 0
    copy_lag: int = 0


@dataclass(frozen=True)
class Pace:
    """Microseconds of a step: fixed, for each token, and for each block of a copy that ends with it."""

    fixed_us: int = 0
    token_us: int = 0
    block_us: int = 0


def open_model(instance: int, shape: Shape) -> Executor:
    sizes = (shape.num_blocks, shape.block_size, shape.max_rows, shape.context_length, shape.num_host_blocks)
    return ExecutorModel(instance, *sizes, copy_lag=shape.copy_lag)


class Rig:
    """`outputs` and `closes`: what the text side was told, by sequence. `row_history`: (name, tokens) of every row, by
    step that was executed. `scored`: the prompt tokens whose log-probabilities were told; `unscored`: those to come."""

    def __init__(
        self,
        bounds: Limits | None = None,
        *,
        policy: Policy = FCFS,
        pace: Pace = Pace(),
        executor: Callable[[int, Shape], Executor] = open_model,
        **shape: int,
    ) -> None:
        self.scheduler = Scheduler(bounds or limits(), policy)
        self.shape = Shape(**shape)
        self.pace = pace
        self.make_executor = executor
        self.now = 1
        self.num_instances = 0
        self.plans: list[StepPlan] = []
        self.row_history: list[list[tuple[str, int]]] = []
        self.outputs: dict[SequenceKey, list[int]] = {}
        self.closes: dict[SequenceKey, Close] = {}
        self.starts: dict[SequenceKey, Start] = {}
        self.scored: dict[SequenceKey, list[int]] = {}
        self.unscored: dict[SequenceKey, deque[int]] = {}
        self.last_number = 0
        self.auto_credit = True
        self.open_executor()

    def open_executor(self) -> None:
        """A new instance says Ready, and answers its Hello."""
        self.num_instances += 1
        self.executor = self.make_executor(self.num_instances, self.shape)
        hello = self.scheduler.executor_ready(self.executor.ready(0), self.now)
        assert hello is not None
        self._after()
        assert self.scheduler.plan(self.now) is None, "a plan before the Hello was answered"
        assert self.scheduler.executor_ready(self.executor.hello(hello), self.now) is None
        self._after()

    def _after(self) -> None:
        self.now += 1
        batch = self.scheduler.take_batch()
        self.scheduler.tidy()
        invariants.check(self.scheduler.state)
        if batch is None:
            return
        assert batch.number == self.last_number + 1
        self.last_number = batch.number
        gateways = {opening.sequence.gateway: None for opening in batch.opens}
        for opening in batch.opens:
            assert opening.sequence not in self.outputs, "opened twice"
            self.outputs[opening.sequence] = []
        if batch.deltas is not None:
            tokens = columns.unpack(batch.deltas.tokens)
            for start in batch.starts:
                assert start.sequence not in self.starts and start.sequence in batch.deltas.sequences
                self.starts[start.sequence] = start
            self._take_scores(batch.deltas)
            counts = columns.unpack(batch.deltas.counts)
            keys = [key for key, count in zip(batch.deltas.sequences, counts, strict=True) for _ in range(count)]
            for key, token in zip(keys, tokens, strict=True):
                assert key in self.starts, "a token before the start"
                assert key not in self.closes, "a token after the close"
                assert not self.unscored.get(key), "a token before its prompt is scored"
                self.outputs[key].append(token)
        for close in batch.closes:
            assert close.sequence in self.outputs and close.sequence not in self.closes, "closed twice, or never opened"
            self.closes[close.sequence] = close
            assert close.num_output_tokens == len(self.outputs[close.sequence])
        if self.auto_credit:
            for gateway in {key.gateway: None for key in self.outputs} | gateways:
                self.credit(gateway)

    def _take_scores(self, deltas: Deltas) -> None:
        """Each prompt token is scored once, in order, and only where that was asked for."""
        logprobs = deltas.prompt_logprobs
        if logprobs is None:
            assert all(columns.unpack(deltas.counts)), "a delta of nothing"
            return
        rows = columns.unpack(logprobs.rows)
        assert all(count or index in rows for index, count in enumerate(columns.unpack(deltas.counts)))
        for row, token in zip(rows, columns.unpack(logprobs.token_ids), strict=True):
            key = deltas.sequences[row]
            assert key not in self.closes, "scored after the close"
            assert token == self.unscored[key].popleft(), "scored out of order"
            self.scored.setdefault(key, []).append(token)

    # events

    def submit(self, submit: Submit) -> Refused | None:
        identity = submit.identity
        key = SequenceKey(identity.gateway, identity.request, identity.incarnation, 0)
        if submit.sampling.prompt_logprobs is not None:
            self.unscored[key] = deque(columns.unpack(submit.prompt_tokens)[1:])
        refused = self.scheduler.submit(submit, self.now)
        self._after()
        if refused is not None:
            self.unscored.pop(key, None)  # it was never opened, and another may come under its name
        return refused

    def cancel(self, identity: Identity) -> None:
        self.scheduler.cancel(identity, self.now)
        self._after()

    def expire(self) -> None:
        self.scheduler.expire(self.now)
        self._after()

    def stop_hit(self, key: SequenceKey, token_index: int) -> None:
        self.scheduler.stop_hit(StopHit(key, token_index), self.now)
        self._after()

    def prepared(self, answer: Prepared) -> None:
        self.scheduler.prepared(answer, self.now)
        self._after()

    def credit(self, gateway: str) -> None:
        self.scheduler.credit(Credit(gateway, self.last_number))

    def plan(self) -> StepPlan | None:
        plan = self.scheduler.plan(self.now)
        if plan is not None:
            self.plans.append(plan)
            self.executor.receive(plan)
            self._check_bounds()
        self._after()
        return plan

    def _check_bounds(self) -> None:
        """Of the step just planned."""
        record, bounds = self.scheduler.state.inflight[-1], self.scheduler.state.limits
        chunks = [count for _, count in record.added]
        assert len(record.rows) - len(chunks) + sum(chunks) <= bounds.token_budget
        assert len(record.rows) <= bounds.max_num_seqs and max(chunks, default=0) <= bounds.chunk_size
        assert len(set(record.rows)) == len(record.rows), "two rows of one run"

    def deliver(self, *, fails: bool = False, poison: int | None = None) -> None:
        """The executor runs its oldest plan and its result is absorbed."""
        result = self.executor.step(fails=fails, poison=poison)
        record = self.scheduler.state.inflight[0]
        counts = [1] * (len(record.rows) - len(record.added)) + [count for _, count in record.added]
        if not fails:
            names = [run.sequence.key.request for run in record.rows]
            self.row_history.append(list(zip(names, counts, strict=True)))
        num_copied = sum(len(self.scheduler.state.copies[n].host_blocks) for n in columns.unpack(result.copies_done))
        pace = self.pace
        duration = (pace.fixed_us + pace.token_us * sum(counts) + pace.block_us * num_copied) * 1000
        result = msgspec.structs.replace(result, t_launched=self.now, t_done=self.now + duration)
        self.now += duration
        self.absorb(result)

    def absorb(self, result: StepResult) -> None:
        """A result arrives; the later steps of a failed epoch are answered as failed, and ignored."""
        hello = self.scheduler.absorb(result, self.now)
        if hello is not None:
            while self.executor.plans:
                assert self.scheduler.absorb(self.executor.step(), self.now) is None
            self._after()
            self.scheduler.executor_ready(self.executor.hello(hello), self.now)
        self._after()

    def lose_executor(self) -> None:
        """A death notice, and nobody there yet; the dead answer nothing."""
        self.executor.plans.clear()
        self.scheduler.executor_lost(self.num_instances, self.now)
        self._after()

    def kill_executor(self) -> None:
        self.lose_executor()
        self.open_executor()

    # running

    def turn(self) -> bool:
        """Fill the window, then deliver one result; False when nothing could be done."""
        while self.plan() is not None:
            pass
        if not self.executor.plans:
            return False
        self.deliver()
        return True

    def run(self, max_turns: int = 20_000) -> None:
        """Until nothing is left to do; a scheduler that stops while somebody waits is an error."""
        for _ in range(max_turns):
            if not self.turn():
                break
        else:
            raise AssertionError("no end")
        assert not self.scheduler.state.requests, "idle while a request is open"
        self.assert_idle()

    def assert_idle(self) -> None:
        state = self.scheduler.state
        assert state.pool.num_free == state.pool.num_total and not state.running and not len(state.waiting)
        assert not state.inflight and not state.suspects and not state.copies
        assert sorted(state.host_blocks) == list(range(self.shape.num_host_blocks)), "a host block is lost"

    def until(self, is_so: Callable[[], bool], each: Callable[[], object] = lambda: None) -> int:
        """Plan or deliver, event by event, until it is so; returns how many events it took. each: before every one."""
        for num_events in range(2000):
            if is_so():
                return num_events
            each()
            if self.plan() is None:
                assert self.executor.plans, "nothing to do"
                self.deliver()
        raise AssertionError("it never came about")

    def turns(self, count: int) -> None:
        """So many turns; each must have something to do."""
        for _ in range(count):
            assert self.turn(), "nothing to do"

    # expectations

    def output(self, name: str, index: int = 0, incarnation: int = 1, gateway: str = "g") -> list[int]:
        return self.outputs[SequenceKey(gateway, name, incarnation, index)]

    def close_of(self, name: str, index: int = 0, incarnation: int = 1, gateway: str = "g") -> Close:
        return self.closes[SequenceKey(gateway, name, incarnation, index)]


def expected_output(submit: Submit, seed: int) -> tuple[list[int], FinishReason]:
    """What the request gets alone: tokens, and how it ends."""
    stops = set(columns.unpack(submit.stopping.stop_token_ids))
    assert submit.stopping.max_tokens is not None
    tokens = continuation(list(columns.unpack(submit.prompt_tokens)), seed, submit.stopping.max_tokens)
    for index, token in enumerate(tokens):
        if token in stops and index + 1 > submit.stopping.min_tokens:
            return tokens[: index + 1], FinishReason.STOP
    return tokens, FinishReason.LENGTH
