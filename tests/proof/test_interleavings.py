"""Every order of a few events: a small model check of the scheduler against the executor model.

Up to three requests in a pool that is too small for them, and every sequence of submits, plans, results, cancels, stop
strings, failures and silences up to a length. States that were seen are not gone on from again. From every state the
scheduler is let run to its end, where everybody must have got what it would get alone.
"""

import io
import pickle
from dataclasses import dataclass

import pytest

from services.scheduler.core.policy import FAIR, FCFS, STATIC, Policy, priority
from services.scheduler.core.state import Limits
from services.wire.messages import Identity, Sampling, SequenceKey, Submit
from tests.proof.laws import LawfulRig
from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import limits, submit_message

POLICIES = {policy.name: policy for policy in (FCFS, FAIR, STATIC, priority(1))}


def alone(prompt: tuple[int, ...], seed: int, count: int, sampling: Sampling | None = None) -> list[int]:
    """The executor model knows no sampling."""
    return continuation(list(prompt), seed, count)


class StillRig(LawfulRig):
    """Time stands still, and the past is forgotten, so that equal states are equal bytes."""

    interfered: dict[str, None]

    def _after(self) -> None:
        super()._after()
        self.now = 1
        self.plans.clear()
        self.row_history.clear()


@dataclass(frozen=True)
class World:
    """bounds and pool of the scheduler, and who will ask, in this order."""

    bounds: Limits
    policy: Policy
    requests: tuple[Submit, ...]
    num_blocks: int = 5
    num_host_blocks: int = 0
    copy_lag: int = 0

    def open(self) -> StillRig:
        rig = StillRig(
            self.bounds,
            policy=self.policy,
            num_blocks=self.num_blocks,
            block_size=2,
            max_rows=3,
            num_host_blocks=self.num_host_blocks,
            copy_lag=self.copy_lag,
        )
        rig.watch(alone)
        rig.interfered = {}
        return rig

    def events(self, rig: StillRig) -> list[tuple[str, str]]:
        """What may happen now: verb and whom it is about."""
        happens = [("plan", ""), ("kill", ""), ("silence" if rig.auto_credit else "credit", "")]
        if rig.executor.plans:
            happens += [("deliver", ""), ("fail", ""), ("poison", "")]
        known = {key.request for key in rig.outputs}
        happens += [("submit", request.identity.request) for request in self.requests[len(known) : len(known) + 1]]
        closed = {key.request for key in rig.closes}
        happens += [("cancel", name) for name in sorted(known - closed)]
        happens += [
            ("stop", key.request) for key, tokens in rig.outputs.items() if tokens and key.request not in closed
        ]
        return happens

    def happen(self, rig: StillRig, verb: str, name: str) -> None:
        match verb:
            case "plan":
                rig.plan()
            case "deliver":
                rig.deliver()
            case "fail":
                rig.deliver(fails=True)
            case "poison":
                rig.deliver(poison=0)
            case "kill":
                rig.kill_executor()
            case "silence" | "credit":
                rig.auto_credit = verb == "credit"
                if rig.auto_credit:
                    rig.credit("g")
            case "submit":
                rig.submit(next(request for request in self.requests if request.identity.request == name))
            case "cancel":
                rig.interfered[name] = None
                rig.cancel(Identity("g", name, 1))
            case "stop":
                rig.interfered[name] = None
                key = SequenceKey("g", name, 1, 0)
                rig.stop_hit(key, len(rig.outputs[key]) - 1)

    def end(self, rig: StillRig) -> None:
        """From here everything goes well: who has not asked yet asks now, and all are served."""
        rig.auto_credit = True
        rig.credit("g")
        known = {key.request for key in rig.outputs}
        for request in self.requests[len(known) :]:
            rig.submit(request)
        rig.run()
        rig.check_all_ended(set(rig.interfered), judged=False)

    def explore(self, num_events: int, num_asked: int = 0) -> int:
        """Every state within so many events of the start, where so many have asked; returns how many there are."""
        start = self.open()
        for request in self.requests[:num_asked]:
            start.submit(request)
        frontier = [freeze(start)]
        seen = set(frontier)
        for _ in range(num_events):
            found: list[bytes] = []
            for state in frontier:
                for verb, name in self.events(thaw(state)):
                    rig = thaw(state)
                    self.happen(rig, verb, name)
                    frozen = freeze(rig)
                    if frozen not in seen:
                        seen.add(frozen)
                        found.append(frozen)
                        self.end(rig)
            frontier = found
        return len(seen)


class _Freezer(pickle.Pickler):
    def persistent_id(self, thing: object) -> str | None:
        return thing.name if isinstance(thing, Policy) else None


class _Thawer(pickle.Unpickler):
    def persistent_load(self, name: str) -> Policy:
        return POLICIES[name]


def freeze(rig: StillRig) -> bytes:
    out = io.BytesIO()
    _Freezer(out, protocol=5).dump(rig)
    return out.getvalue()


def thaw(state: bytes) -> StillRig:
    rig = _Thawer(io.BytesIO(state)).load()
    assert isinstance(rig, StillRig)
    return rig


SHARED = [5, 6, 7, 8]
TRIO = (
    submit_message("a", SHARED, max_tokens=3),
    submit_message("b", SHARED, max_tokens=4, seed=1, priority=1, tenant="t"),
    submit_message("c", [3], max_tokens=5, stop_ids=(alone((3,), 0, 2)[1],), priority=2),
)
SAMPLES = (
    submit_message("a", SHARED, max_tokens=3, n=2),
    submit_message("b", [*SHARED, 9], max_tokens=2, n=2, stop_ids=(alone((*SHARED, 9), 0, 1)[0],)),
)
PLAIN = World(limits(depth=2, token_budget=8, chunk_size=4, max_num_seqs=3, max_unread=1), FCFS, TRIO)
SWAPPING = World(
    limits(depth=2, token_budget=8, chunk_size=8, max_num_seqs=3, max_unread=1, preemption="swap"),
    FCFS,
    TRIO,
    num_host_blocks=8,
    copy_lag=1,
)
WORLDS = {
    "plain": PLAIN,
    "swap": SWAPPING,
    "samples": World(
        limits(depth=2, token_budget=8, chunk_size=4, max_num_seqs=3, max_unread=1, prefix_cache=False), FCFS, SAMPLES
    ),
    "samples, swap": World(
        limits(depth=2, token_budget=8, chunk_size=8, max_num_seqs=3, max_unread=1, preemption="swap"),
        FCFS,
        SAMPLES,
        num_host_blocks=8,
        copy_lag=1,
    ),
    "depth 1": World(limits(depth=1, token_budget=3, chunk_size=3, max_num_seqs=2, max_unread=1), FCFS, TRIO),
    "depth 3": World(limits(depth=3, token_budget=8, chunk_size=4, max_num_seqs=3, max_unread=2), FCFS, TRIO),
    "priority": World(limits(depth=2, token_budget=4, chunk_size=4, max_num_seqs=2, max_unread=1), priority(1), TRIO),
    "fair": World(limits(depth=2, token_budget=4, chunk_size=4, max_num_seqs=2, max_unread=1), FAIR, TRIO),
    "static": World(limits(depth=2, token_budget=8, chunk_size=4, max_num_seqs=2, max_unread=1), STATIC, TRIO),
}


def test_every_order_of_four_events_among_three_requests() -> None:
    assert WORLDS["swap"].explore(4, num_asked=3) > 100


def test_every_order_of_four_events_from_the_beginning() -> None:
    assert WORLDS["plain"].explore(4) > 100


def test_every_order_of_four_events_among_samples() -> None:
    assert WORLDS["samples"].explore(4, num_asked=2) > 100


@pytest.mark.soak
@pytest.mark.parametrize("world", list(WORLDS))
@pytest.mark.parametrize("num_asked", [0, 3])
def test_every_order_of_seven_events(world: str, num_asked: int) -> None:
    assert WORLDS[world].explore(7, num_asked) > 2000
