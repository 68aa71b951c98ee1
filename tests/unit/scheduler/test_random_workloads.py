"""Random workloads against the executor model: whatever happens, each request gets what it would get alone."""

import random
from dataclasses import dataclass

import pytest

from services.scheduler.core.policy import FAIR, FCFS, STATIC, priority
from services.wire.codec import encode
from services.wire.messages import FailureReason, FinishReason, Identity, Sampling, Submit
from tests.proof.laws import LawfulRig
from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import Rig, limits, submit_message


def alone(prompt: tuple[int, ...], seed: int, count: int, sampling: Sampling | None = None) -> list[int]:
    """The executor model knows no sampling."""
    return continuation(list(prompt), seed, count)


@dataclass
class Weights:
    """How often each event happens, relative to the others."""

    submit: float = 2
    cancel: float = 0.3
    stop_hit: float = 0.3
    plan: float = 6
    deliver: float = 6
    fail: float = 0
    kill: float = 0
    poison: float = 0
    silence: float = 0


NUM_SEEDS = 4
CALM = Weights()
FAULTY = Weights(fail=0.15, kill=0.06, poison=0.1)
SILENT = Weights(silence=0.5)
EVERYTHING = Weights(fail=0.1, kill=0.05, poison=0.1, silence=0.3)


class Workload:
    """One seed's worth of events."""

    def __init__(self, seed: int, weights: Weights) -> None:
        self.random = rng = random.Random(seed)
        self.weights = weights
        budget = rng.choice([1, 2, 5, 16, 64])
        self.rig = LawfulRig(
            limits(
                depth=rng.choice([1, 2, 3]),
                token_budget=budget,
                chunk_size=rng.choice([1, 3, budget]),
                max_num_seqs=rng.choice([1, 2, 4, 8]),
                max_unread=rng.choice([1, 4]) if weights.silence else 10_000,
                prefix_cache=rng.random() < 0.8,
                preemption=rng.choice(["recompute", "swap", "auto"]),
                victim=rng.choice(["lifo", "lru", "cost"]),
                forecast=rng.random() < 0.3,
                prefill_quantum=rng.choice([0, 0, 2]),
                inter_token_us=rng.choice([0, 0, 1]),
            ),
            num_blocks=rng.randint(5, 33),
            block_size=rng.choice([1, 2, 4, 8]),
            max_rows=rng.choice([2, 8]),
            num_host_blocks=rng.choice([0, 4, 30]),
            policy=rng.choice([FCFS, FCFS, priority(5), FAIR, STATIC]),
            copy_lag=rng.choice([0, 1, 3]),
        )
        self.rig.watch(alone)
        self.submits: dict[str, Submit] = {}
        self.touched: set[str] = set()  # cancelled, stopped or poisoned: their outputs are a prefix
        self.silent: str | None = None
        self.stems = [[rng.randint(2, 49) for _ in range(20)] for _ in range(3)]

    def run(self, num_events: int) -> None:
        names = [name for name in vars(self.weights) if getattr(self.weights, name)]
        odds = [getattr(self.weights, name) for name in names]
        for _ in range(num_events):
            getattr(self, self.random.choices(names, odds)[0])()
        self.speak()
        self.rig.run()
        self.rig.check_all_ended(self.touched, judged=False)

    # events

    def submit(self) -> None:
        rng = self.random
        positions = self.rig.scheduler.state.pool.num_positions
        length = rng.randint(1, max(1, min(20, positions - 2)))
        name = f"r{len(self.submits)}"
        submit = submit_message(
            name,
            self._prompt(length),
            max_tokens=rng.randint(1, max(1, min(25, positions - length))),
            stop_ids=tuple(rng.sample(range(2, 50), rng.choice([0, 0, 3]))),
            min_tokens=0,
            seed=rng.randint(0, 5),
            n=rng.choice([1, 1, 1, 2, 3]),
            gateway=rng.choice(["g", "h"]) if self.weights.silence else "g",
            priority=rng.randint(-1, 2),
            tenant=rng.choice(["x", "y", "z"]),
            salt=rng.choice(["", "", "s"]),
        )
        self.submits[name] = submit
        assert self.rig.submit(submit) is None

    def _prompt(self, length: int) -> list[int]:
        """Half of them begin like others."""
        rng = self.random
        stem = rng.choice(self.stems)[: rng.choice([0, rng.randint(0, length)])]
        return stem + [rng.randint(2, 49) for _ in range(length - len(stem))]

    def cancel(self) -> None:
        if self.submits:
            name = self.random.choice(list(self.submits))
            self.touched.add(name)
            self.rig.cancel(self.submits[name].identity)

    def stop_hit(self) -> None:
        keys = [key for key, tokens in self.rig.outputs.items() if tokens]
        if keys:
            key = self.random.choice(keys)
            self.touched.add(key.request)
            self.rig.stop_hit(key, len(self.rig.outputs[key]) - 1)

    def plan(self) -> None:
        self.rig.plan()

    def deliver(self) -> None:
        if self.rig.executor.plans:
            self.rig.deliver()

    def fail(self) -> None:
        if self.rig.executor.plans:
            self.rig.deliver(fails=True)

    def kill(self) -> None:
        self.rig.kill_executor()

    def poison(self) -> None:
        if self.rig.executor.plans:
            before = set(self.rig.closes)
            self.rig.deliver(poison=0)
            closed = [self.rig.closes[key] for key in self.rig.closes if key not in before]
            self.touched.update(c.sequence.request for c in closed if c.failure == FailureReason.POISONED_ROW)

    def silence(self) -> None:
        """One gateway stops reading, or comes back."""
        if self.silent is None:
            self.silent = self.random.choice(["g", "h"])
            self.rig.auto_credit = False
        else:
            self.speak()

    def speak(self) -> None:
        self.silent = None
        self.rig.auto_credit = True
        for gateway in ("g", "h"):
            self.rig.credit(gateway)


PROFILES = [(CALM, 0), (FAULTY, 1000), (SILENT, 2000), (EVERYTHING, 3000)]


def run_workloads(weights: Weights, seeds: range) -> None:
    num_cached_tokens = num_copies = num_preemptions = 0
    for seed in seeds:
        try:
            workload = Workload(seed, weights)
            workload.run(250)
            state = workload.rig.scheduler.state
            num_cached_tokens += state.counters.num_cached_tokens
            num_preemptions += state.counters.num_preemptions
            num_copies += state.num_copies
        except Exception as error:
            raise AssertionError(f"workload of seed {seed}") from error
    assert num_cached_tokens and num_preemptions and num_copies, "the workloads are too easy"


@pytest.mark.parametrize(("weights", "first_seed"), PROFILES)
def test_every_request_gets_what_it_would_get_alone(weights: Weights, first_seed: int) -> None:
    run_workloads(weights, range(first_seed, first_seed + NUM_SEEDS))


@pytest.mark.soak
@pytest.mark.parametrize(("weights", "first_seed"), PROFILES)
def test_every_request_gets_what_it_would_get_alone_for_long(weights: Weights, first_seed: int) -> None:
    run_workloads(weights, range(first_seed, first_seed + 300))


def test_same_events_give_the_same_plans_byte_for_byte() -> None:
    for seed in range(3):
        first, second = (Workload(seed, EVERYTHING) for _ in range(2))
        first.run(150)
        second.run(150)
        assert [encode(plan) for plan in first.rig.plans] == [encode(plan) for plan in second.rig.plans] != []


def test_depth_changes_no_token() -> None:
    for seed in range(5):
        outputs = []
        for depth in (1, 2, 3):
            rig = Rig(limits(depth=depth, token_budget=9, chunk_size=5, max_num_seqs=4), num_blocks=12)
            rng = random.Random(seed)
            for number in range(8):
                prompt = [rng.randint(2, 49) for _ in range(rng.randint(1, 15))]
                rig.submit(submit_message(f"r{number}", prompt, max_tokens=rng.randint(1, 20), seed=number))
            rig.run()
            outputs.append(rig.outputs)
        assert outputs[0] == outputs[1] == outputs[2]


def test_identity_is_exact() -> None:
    """Cancelling one id touches no other, whatever they share."""
    rig = Rig()
    for name in ("r1", "r10", ""):
        rig.submit(submit_message(name, [5, 6, 7], max_tokens=6))
    rig.turn()
    rig.cancel(Identity("g", "", 1))
    rig.cancel(Identity("g", "r1", 2))
    rig.run()
    reasons = {key.request: close.reason for key, close in rig.closes.items()}
    assert reasons == {"r1": FinishReason.LENGTH, "r10": FinishReason.LENGTH, "": FinishReason.CANCELLED}
