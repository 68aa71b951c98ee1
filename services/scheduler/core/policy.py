"""Who goes first, who gives way, and who may join: pure functions over sequences and runs.

A policy is an order (smaller goes first, unique), a grouping whose groups are ranked anew at every look, and two
questions: may anybody join now, and may a waiting sequence take the place of a running one. Victims are chosen by
class first (a silent reader, then the lowest priority under the priority policy), then by one of three rules.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Literal

from services.scheduler.core.blocks import BlockPool
from services.scheduler.core.sequence import Run, Sequence

Order = tuple[int, ...]
VictimRule = Literal["lifo", "lru", "cost"]

# A priority level is worth so many nanoseconds of waiting: a request submitted that much later per level goes first.
DEFAULT_AGING_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Policy:
    """order: within a group, fixed while a sequence waits. group: sequences ranked together, by the rank of any.
    displaces: whether the first, waiting, may take the place of the second. fills: whether a batch already under way
    takes more. uses_priority: whether a lower priority makes a better victim."""

    name: str
    order: Callable[[Sequence], Order]
    group: Callable[[Sequence], str] = lambda _: ""
    rank: Callable[[Sequence], int] = lambda _: 0
    displaces: Callable[[Sequence, Sequence], bool] = lambda waiting, running: False
    fills: bool = True
    uses_priority: bool = False

    def precedence(self, sequence: Sequence) -> Order:
        """The whole order at this moment: rank of the group, then the order within it."""
        return (self.rank(sequence), *self.order(sequence))


def _by_arrival(sequence: Sequence) -> Order:
    return (sequence.arrival,)


def priority(aging_ns: int = DEFAULT_AGING_NS) -> Policy:
    """Higher priority first, with linear aging: each level counts as aging_ns of waiting.

    Linear aging is a fixed order, submit time minus priority x aging_ns, so nothing is ever sorted again. Bound: no
    request submitted more than (p - q) x aging_ns after one of priority q goes before it, whatever its priority p.
    """

    def order(sequence: Sequence) -> Order:
        return (sequence.t_submitted - sequence.priority * aging_ns, sequence.arrival)

    def displaces(waiting: Sequence, running: Sequence) -> bool:
        return waiting.priority > running.priority and order(waiting) < order(running)

    return Policy("priority", order, displaces=displaces, uses_priority=True)


FCFS = Policy("fcfs", _by_arrival)

# The least served tenant first, then its oldest request. Bound on the gap of two backlogged tenants: docs/scheduling.md
FAIR = Policy("fair", _by_arrival, group=lambda s: s.tenant.name, rank=lambda s: s.tenant.served)

# The baseline: a batch takes no more once it has formed, and the next forms when its last member has ended.
STATIC = Policy("static", _by_arrival, fills=False)


def choose_victim(
    runs: Iterable[Run], policy: Policy, rule: VictimRule, has_credit: Callable[[Sequence], bool], pool: BlockPool
) -> Run | None:
    """The run to preempt, or None when none would give a block back.

    lifo: the one that goes last. lru: the one whose last row was planned longest ago. cost: the one that gives back
    most blocks for each token to compute again. Ties go to the one that goes last.
    """
    candidates = [run for run in runs if pool.num_reclaimable(run.blocks)]
    if not candidates:
        return None

    def suitability(run: Run) -> tuple[bool, int, float, Order]:
        sequence = run.sequence
        level = -sequence.priority if policy.uses_priority else 0
        return not has_credit(sequence), level, _rule_score(run, rule, pool), policy.precedence(sequence)

    return max(candidates, key=suitability)


def _rule_score(run: Run, rule: VictimRule, pool: BlockPool) -> float:
    match rule:
        case "lifo":
            return 0.0
        case "lru":
            return -inf if run.is_carried else -float(run.last_planned_step)
        case "cost":
            num_reclaimable = pool.num_reclaimable(run.blocks)
            num_shared = len(run.blocks) - num_reclaimable
            return num_reclaimable / max(1, run.planned - num_shared * pool.block_size)
