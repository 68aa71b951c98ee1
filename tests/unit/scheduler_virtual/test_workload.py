"""Workloads: the same for the same seed, and distributed as they say."""

import random
from itertools import pairwise
from statistics import fmean, median

from services.scheduler.virtual.device import NS_PER_S
from services.scheduler.virtual.workload import (
    Demand,
    Kind,
    Workload,
    always,
    bursts,
    closed_loop,
    log_normal,
    mixed,
    poisson,
    uniform,
)

KIND = Kind(uniform(10, 20), log_normal(100, 0.5, 400), "t", priority=2)


def test_the_seed_decides_everything() -> None:
    assert poisson(KIND, 50, 5.0, seed=3) == poisson(KIND, 50, 5.0, seed=3)
    assert poisson(KIND, 50, 5.0, seed=3) != poisson(KIND, 50, 5.0, seed=4)
    assert bursts(KIND, 50, 5, 1.0, seed=3) == bursts(KIND, 50, 5, 1.0, seed=3)
    assert closed_loop(KIND, 50, 5, seed=3) == closed_loop(KIND, 50, 5, seed=3)


def test_poisson_arrivals_come_at_their_rate_and_vary_as_they_should() -> None:
    times = [demand.at for demand in poisson(KIND, 5000, per_second=10.0, seed=1).timed]
    assert times == sorted(times)
    gaps = [(later - earlier) / NS_PER_S for earlier, later in pairwise(times)]
    mean = fmean(gaps)
    assert abs(mean - 0.1) < 0.005
    assert abs(fmean((gap - mean) ** 2 for gap in gaps) / mean**2 - 1) < 0.1, "as far spread as their mean"


def test_bursts_come_at_once_again_and_again() -> None:
    times = [demand.at for demand in bursts(KIND, 7, size=3, every_s=2.0, seed=1).timed]
    assert times == [0, 0, 0, 2 * NS_PER_S, 2 * NS_PER_S, 2 * NS_PER_S, 4 * NS_PER_S]


def test_a_closed_loop_begins_with_its_clients() -> None:
    load = closed_loop(KIND, 10, num_clients=4, seed=1)
    assert len(load.timed) == 4 and len(load.queued) == 6 and len(load) == 10
    assert all(demand.at == 0 for demand in load.timed)


def test_lengths_are_drawn_as_told() -> None:
    rng = random.Random(5)
    assert {always(7)(rng) for _ in range(10)} == {7}
    assert {uniform(3, 5)(rng) for _ in range(100)} == {3, 4, 5}
    lengths = [log_normal(100, 1.0, 500)(rng) for _ in range(4000)]
    assert 90 < median(lengths) < 110 and max(lengths) == 500 and min(lengths) >= 1
    either = [mixed([(3, always(1)), (1, always(2))])(rng) for _ in range(4000)]
    assert 0.22 < either.count(2) / 4000 < 0.28


def test_workloads_add_up() -> None:
    demand = Demand(1, 2, 3)
    assert Workload((demand,)) + Workload((), (demand,)) == Workload((demand,), (demand,))
    (drawn,) = poisson(KIND, 1, 1.0, seed=0).timed
    assert (drawn.tenant, drawn.priority) == ("t", 2)
