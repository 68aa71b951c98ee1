"""A rig that holds every event against the laws of scheduling, beyond what is true of the state at rest.

Invariants of the state are the core's own (invariants.py); these are about what happens: each token is the one that
the request would get alone; whoever goes first goes on; nobody is preempted for nothing; an end wastes no more rows
than the window holds; a reader that fell silent is sent no more than was under way.
"""

from collections import Counter
from collections.abc import Callable

from services.scheduler.core.admission import seed_of_sample
from services.scheduler.core.planner import BLAME_ALONE
from services.scheduler.core.sequence import Run, Sequence
from services.scheduler.core.swap import is_copying_out
from services.wire import columns
from services.wire.messages import (
    Close,
    Credit,
    FailureReason,
    FinishReason,
    Refused,
    Sampling,
    SequenceKey,
    StepPlan,
    Submit,
)
from tests.unit.scheduler.rig import Rig

Alone = Callable[[tuple[int, ...], int, int, Sampling], list[int]]
# How a request may fail through no fault of the scheduler.
FAILURES = {
    FailureReason.POISONED_ROW,
    FailureReason.CONSTRAINT_FAILED,
    FailureReason.CONSTRAINT_INVALID,
    FailureReason.STEP_FAILED,
    FailureReason.DEADLINE,
    FailureReason.DEADLINE_UNREACHABLE,
    FailureReason.KV_CAPACITY,
    FailureReason.CONTEXT_LENGTH,
}


class LawfulRig(Rig):
    """alone: the tokens of (prompt, seed, count, sampling). `expected`: how each sequence ends if nobody interferes."""

    alone: Alone
    expected: dict[SequenceKey, tuple[list[int], FinishReason]]
    num_checked: dict[SequenceKey, int]
    credited: dict[str, int]
    num_unread_deltas: Counter[str]  # batches with tokens for a reader that was silent when they came
    num_closed = 0

    def watch(self, alone: Alone) -> None:
        """Begin to hold events against the laws."""
        self.alone = alone
        self.expected, self.num_checked, self.credited = {}, {}, {}
        self.num_unread_deltas = Counter()

    # events

    def submit(self, submit: Submit) -> Refused | None:
        prompt = tuple(columns.unpack(submit.prompt_tokens))
        identity = submit.identity
        self.credited.setdefault(identity.gateway, self.last_number)
        expected = {}
        for index in range(submit.n):
            key = SequenceKey(identity.gateway, identity.request, identity.incarnation, index)
            expected[key] = self._expect(submit, prompt, index)
        known = dict(self.expected)
        self.expected |= expected
        refused = super().submit(submit)
        if refused is not None:
            self.expected = known
        return refused

    def _expect(self, submit: Submit, prompt: tuple[int, ...], index: int) -> tuple[list[int], FinishReason]:
        """FAILED: at a dead end, or before it began."""
        stopping, capacity = submit.stopping, self.scheduler.state.capacity
        assert stopping.max_tokens is not None and capacity is not None
        tokens = self.alone(prompt, seed_of_sample(submit.seed, index), stopping.max_tokens, submit.sampling)
        stops = columns.unpack(stopping.stop_token_ids)
        ends = capacity.eos_token_ids if submit.sampling.constraint is not None else frozenset[int]()
        for number, token in enumerate(tokens, 1):
            if token in ends or (token in stops and number > stopping.min_tokens):
                return tokens[:number], FinishReason.STOP
        return tokens, FinishReason.LENGTH if len(tokens) == stopping.max_tokens else FinishReason.FAILED

    def credit(self, gateway: str) -> None:
        super().credit(gateway)
        self.credited[gateway] = self.last_number
        self.num_unread_deltas[gateway] = 0

    def late_credit(self, gateway: str, number: int) -> None:
        """A credit that was overtaken changes nothing."""
        self.scheduler.credit(Credit(gateway, min(number, self.credited[gateway])))

    def plan(self) -> StepPlan | None:
        state = self.scheduler.state
        before = {run: state.pool.num_reclaimable(run.blocks) for run in state.running}
        num_preemptions = state.counters.num_preemptions
        order = self._order()
        plan = super().plan()
        preempted = [run for run in before if not run.is_live and run.sequence.finish is None]
        assert len(preempted) == state.counters.num_preemptions - num_preemptions
        if preempted:
            self._check_preemption(preempted, before)
        self._check_goes_on(order)
        return plan

    # laws

    def _check_preemption(self, preempted: list[Run], before: dict[Run, int]) -> None:
        """before: who ran before the plan, and how many blocks each would have given back."""
        state = self.scheduler.state
        assert len(preempted) > 1 or before[preempted[0]] > 0, "preempted for nothing"
        is_alone = any(sequence.blame >= BLAME_ALONE for sequence in state.suspects)
        may_displace = state.policy.uses_priority or state.credits.is_any_silent or is_alone
        assert may_displace or all(run in before for run in state.running), "somebody joined a plan that preempted"

    def _order(self) -> list[Sequence]:
        """Whom the next plan serves first, then second, and so on; nobody when it may not be made, is a suspect's
        alone, or when blocks are about to be given back."""
        state = self.scheduler.state
        if state.is_paused or not state.is_open or len(state.inflight) >= state.limits.depth:
            return []
        is_alone = any(sequence.blame >= BLAME_ALONE for sequence in state.suspects)
        if is_alone or is_copying_out(state) or (state.num_ending and not state.pool.num_free):
            return []
        able = [run.sequence for run in state.running if run.copy is None and not run.is_ending]
        return sorted([*able, *state.waiting], key=state.policy.precedence)

    def _check_goes_on(self, order: list[Sequence]) -> None:
        """Of those that run after the plan and can, the first has a row, unless its reader is silent."""
        state = self.scheduler.state
        if is_copying_out(state) or (state.copies and not state.pool.num_free):
            return  # it waits for the blocks of a copy
        able = (s.run for s in order if s.run is not None and s.run.copy is None and state.has_credit(s))
        first = next(able, None)
        assert first is None or (state.inflight and first in state.inflight[-1].rows), "the first does not go on"

    def _after(self) -> None:
        num_batches = self.last_number
        super()._after()
        if self.last_number > num_batches and hasattr(self, "expected"):
            self._check_tokens()
            self._check_ends()

    def _check_tokens(self) -> None:
        """Every new token is the one that the sequence gets alone; a silent reader gets what was under way."""
        gateways: dict[str, None] = {}
        for key, tokens in self.outputs.items():
            known = self.num_checked.get(key, 0)
            if len(tokens) > known:
                wanted = self.expected[key][0]
                assert tokens[known:] == wanted[known : len(tokens)], f"{key}: not what it gets alone"
                self.num_checked[key] = len(tokens)
                gateways[key.gateway] = None
        limits = self.scheduler.state.limits
        for gateway in gateways:
            if self.last_number - self.credited[gateway] > limits.max_unread:
                self.num_unread_deltas[gateway] += 1
                assert self.num_unread_deltas[gateway] <= limits.depth, "a silent reader is sent more and more"

    def _check_ends(self) -> None:
        for key in list(self.closes)[self.num_closed :]:
            close = self.closes[key]
            num_rows = self._num_rows_in_flight(key)
            if close.reason == FinishReason.LENGTH:
                assert num_rows == 0, "a row after an end by length"
            assert num_rows <= self.scheduler.state.limits.depth, "rows that the window cannot hold"
            if close.matched_token is not None:
                assert num_rows <= self.scheduler.state.limits.depth - 1, "a stop token wastes too many rows"
        self.num_closed = len(self.closes)

    def _num_rows_in_flight(self, key: SequenceKey) -> int:
        inflight = self.scheduler.state.inflight
        return sum(run.sequence.key == key for record in inflight for run in record.rows)

    def check_all_ended(self, interfered: set[str], judged: bool) -> None:
        """Once idle: everybody has ended, and as it would alone but where somebody interfered. judged: an executor was
        replaced by a smaller one, so that some could not go on."""
        assert set(self.closes) == set(self.outputs), "a request without an end"
        for key, close in self.closes.items():
            tokens, reason = self.expected[key]
            if close.reason == FinishReason.FAILED:
                assert close.failure in FAILURES
                is_judgement = close.failure in (FailureReason.KV_CAPACITY, FailureReason.CONTEXT_LENGTH)
                assert judged or not is_judgement, "refused, and it would have fitted"
                if close.failure == FailureReason.CONSTRAINT_FAILED:
                    assert (self.outputs[key], close.reason) == (tokens, reason), f"{key}: a dead end that is none"
            elif key.request not in interfered:
                assert (self.outputs[key], close.reason) == (tokens, reason), f"{key}: another end than alone"
            self._check_counts(key, close)

    def summary(self) -> dict[str, int]:
        """What came about since the start."""
        state = self.scheduler.state
        return {
            "steps": state.counters.num_steps,
            "tokens": state.counters.num_output_tokens,
            "cached": state.counters.num_cached_tokens,
            "forks": state.counters.num_forks,
            "preemptions": state.counters.num_preemptions,
            "copies": state.num_copies,
            "epochs": state.epoch,
            "ends": len(self.closes),
        }

    def _check_counts(self, key: SequenceKey, close: Close) -> None:
        assert close.num_output_tokens == len(self.outputs[key])
        assert (key in self.starts) == bool(self.outputs[key])
