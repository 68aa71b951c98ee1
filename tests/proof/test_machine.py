"""Whatever happens in whatever order: arrivals, ends, failures, silence, pauses, against the product's own executor.

A Hypothesis state machine over the scheduler's verbs. After every event the invariants of the state and the laws of
scheduling hold; in the end everybody has ended, and has got exactly what it would get alone.
"""

import dataclasses
import itertools
import sys
from collections import Counter
from typing import ClassVar

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from services.scheduler.core.state import Limits
from services.wire.messages import FailureReason, Identity, Submit
from tests.proof.constrained_rig import ConstrainedRig
from tests.proof.simulated_executor import alone
from tests.proof.strategies import GATEWAYS, POLICIES, Asks, asks, bounds, shapes
from tests.unit.scheduler.rig import Shape

A_LONG_TIME_NS = 10_000_000


class SchedulerMachine(RuleBasedStateMachine):
    """`interfered`: requests whose end may differ from what they would get alone. `seen`: what came about, in all."""

    seen: ClassVar[Counter[str]] = Counter()

    @initialize(bounds=bounds, shape=shapes, policy=st.sampled_from(sorted(POLICIES)))
    def open(self, bounds: Limits, shape: Shape, policy: str) -> None:
        self.rig = ConstrainedRig(bounds, POLICIES[policy], shape)
        self.rig.watch(alone)
        self.submits: list[Submit] = []
        self.interfered: set[str] = set()
        self.is_lost = self.is_judged = False

    # requests

    @rule(asks=asks)
    def submit(self, asks: Asks) -> None:
        assert self._submit(f"r{len(self.submits)}", 1, asks)

    @rule(burst=st.lists(asks, min_size=2, max_size=5))
    def submit_many(self, burst: list[Asks]) -> None:
        for each in burst:
            self.submit(each)

    @precondition(lambda self: self.submits)
    @rule(asks=asks, which=st.integers(0, 50))
    def use_an_id_again(self, asks: Asks, which: int) -> None:
        """From the same gateway it closes the older call, if that lives; from another it is refused while it does."""
        name = self.submits[which % len(self.submits)].identity.request
        live = self.rig.scheduler.state.requests.get(name)
        incarnation = 1 + max(s.identity.incarnation for s in self.submits if s.identity.request == name)
        self.interfered.add(name)
        is_taken = self._submit(name, incarnation, asks)
        assert is_taken == (live is None or live.identity.gateway == asks.gateway)

    def _submit(self, name: str, incarnation: int, asks: Asks) -> bool:
        submit = asks.submit(name, incarnation, self.rig.scheduler.state.pool.num_positions)
        if self.rig.submit(submit) is not None:
            return False
        self.submits.append(submit)
        if asks.remaining_ms is not None:
            self.interfered.add(name)
        return True

    @precondition(lambda self: self.submits)
    @rule(which=st.integers(0, 50))
    def cancel(self, which: int) -> None:
        """Twice, and others of nearly this identity: only the one meant ends."""
        identity = self.submits[which % len(self.submits)].identity
        self.interfered.add(identity.request)
        self.rig.cancel(identity)
        num_closes = len(self.rig.closes)
        self.rig.cancel(identity)
        self.rig.cancel(Identity(identity.gateway, identity.request, identity.incarnation + 100))
        self.rig.cancel(Identity(identity.gateway, "", identity.incarnation))
        assert len(self.rig.closes) == num_closes

    @precondition(lambda self: any(self.rig.outputs.values()))
    @rule(which=st.integers(0, 50))
    def hit_a_stop_string(self, which: int) -> None:
        keys = [key for key, tokens in self.rig.outputs.items() if tokens]
        key = keys[which % len(keys)]
        self.interfered.add(key.request)
        self.rig.stop_hit(key, len(self.rig.outputs[key]) - 1)

    # steps

    @rule()
    def plan(self) -> None:
        self.rig.plan()

    @precondition(lambda self: self.rig.executor.plans)
    @rule()
    def deliver(self) -> None:
        self.rig.deliver()

    @rule(count=st.integers(1, 8))
    def go_on(self, count: int) -> None:
        for _ in range(count):
            if not self.rig.turn():
                break

    @rule(count=st.integers(8, 30))
    def go_on_for_long(self, count: int) -> None:
        self.go_on(count)

    # constraints

    @rule(which=st.integers(0, 10))
    def compile(self, which: int) -> None:
        """One constraint of those asked for, or a late answer of a dead executor."""
        self.rig.compile(which)

    # failures

    @precondition(lambda self: self.rig.executor.plans)
    @rule(row=st.integers(0, 3))
    def poison_a_row(self, row: int) -> None:
        before = set(self.rig.closes)
        self.rig.deliver(poison=row)
        new = [self.rig.closes[key] for key in self.rig.closes if key not in before]
        self.interfered.update(c.sequence.request for c in new if c.failure == FailureReason.POISONED_ROW)

    @precondition(lambda self: self.rig.executor.plans)
    @rule()
    def fail_a_step(self) -> None:
        self.rig.deliver(fails=True)

    @rule(by=st.sampled_from(["an equal", "an equal", "a smaller", "another", "nobody"]))
    def replace_the_executor(self, by: str) -> None:
        """With a death notice first or without one; for now, perhaps, by nobody."""
        shape = self.rig.shape
        if by == "nobody":
            self.rig.lose_executor()
            self.is_lost = True
            return
        if by == "a smaller":
            self.is_judged = True
            self.rig.shape = dataclasses.replace(shape, num_blocks=max(4, shape.num_blocks - 3), num_host_blocks=3)
        elif by == "another":  # that holds at least as much, in blocks of another size
            num_blocks = -(-shape.num_blocks * shape.block_size // (shape.block_size % 4 + 1)) + 1
            self.rig.shape = dataclasses.replace(shape, num_blocks=num_blocks, block_size=shape.block_size % 4 + 1)
        self.rig.open_executor()
        self.is_lost = False

    # readers and operators

    @rule(gateway=st.sampled_from([*GATEWAYS, "all"]))
    def read(self, gateway: str) -> None:
        """One reads up to now and no further, and the others not at all; or all read on."""
        self.rig.auto_credit = gateway == "all"
        for name in GATEWAYS:
            if gateway in (name, "all"):
                self.rig.credit(name)

    @rule(what=st.sampled_from(["pause", "resume", "flush", "time", "compile slowly", "compile"]))
    def operate(self, what: str) -> None:
        if what == "flush":
            self.rig.scheduler.flush_cache()
        elif what == "time":
            self.rig.now += A_LONG_TIME_NS
            self.rig.expire()
        elif what in ("compile slowly", "compile"):
            self.rig.compiles_at_once = what == "compile"
        else:
            self.rig.scheduler.pause(what == "pause")

    # the end

    def teardown(self) -> None:
        if sys.exception() is not None or not hasattr(self, "rig"):
            return
        self.operate("resume")
        self.operate("compile")
        self.read("all")
        if self.is_lost:
            self.rig.open_executor()
        self.rig.run()
        self.rig.check_all_ended(self.interfered, self.is_judged)
        self.seen.update(self.rig.summary())


def prove(num_examples: int, num_events: int, seed: int | None = None) -> Counter[str]:
    """Run the machine and say what came about; seed: None draws the same examples every time."""
    SchedulerMachine.seen.clear()
    machine = type("Machine", (SchedulerMachine,), {})
    if seed is not None:
        hypothesis.seed(seed)(machine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=num_events,
            derandomize=seed is None,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink]
            if settings.get_current_profile_name() == "shrink"
            else [Phase.generate],
        ),
    )
    return SchedulerMachine.seen


def assert_hard(seen: Counter[str]) -> None:
    assert all(seen[what] for what in ("tokens", "cached", "forks", "preemptions", "copies", "epochs", "complete")), (
        "the examples are too easy"
    )


def test_the_laws_hold_whatever_happens() -> None:
    assert_hard(prove(num_examples=30, num_events=30))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(30))
def test_the_laws_hold_for_a_million_steps(seed: int) -> None:
    """35,000 steps of the executor and more for each seed: examples differ, so as many are drawn as it takes."""
    seen: Counter[str] = Counter()
    for part in itertools.count(seed * 1000):
        seen.update(prove(num_examples=100, num_events=50, seed=part))
        if seen["steps"] >= 35_000:
            break
    assert_hard(seen)
