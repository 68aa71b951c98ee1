"""The virtual server: what single requests take, to the nanosecond, and that a run repeats itself."""

from msgspec.structs import replace

from services.scheduler.core.policy import FCFS, STATIC
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.virtual.device import LLAMA_8B, NS_PER_S
from services.scheduler.virtual.engine import START, Engine
from services.scheduler.virtual.metrics import Targets, summarize
from services.scheduler.virtual.scenarios import limits
from services.scheduler.virtual.workload import Demand, Kind, Workload, closed_loop, poisson, uniform

KIND = Kind(uniform(50, 400), uniform(5, 60))


def step_ns(num_tokens: int, num_positions: int) -> int:
    return LLAMA_8B.step_ns(0, num_tokens, num_positions)


def test_one_request_takes_its_steps_and_nothing_else() -> None:
    """In two chunks, then a step a token; each plan is there before its step can begin."""
    journal = Engine(LLAMA_8B, limits(512, 4)).run(Workload((Demand(7, 700, 3),)))
    (record,) = journal.records
    assert record.t_arrived == START + 7
    assert record.ttft_ns == step_ns(512, 512) + step_ns(188, 700)
    assert list(record.gaps) == [step_ns(1, 701), step_ns(1, 702)]
    assert record.t_end == record.t_last and record.num_preemptions == 0
    assert [step.num_tokens for step in journal.steps] == [512, 188, 1, 1]


def test_a_request_that_arrives_during_a_step_joins_after_the_one_already_planned() -> None:
    decode = Demand(0, 16, 200)
    late = Demand(NS_PER_S // 2, 16, 1)
    journal = Engine(LLAMA_8B, limits(512, 4)).run(Workload((decode, late)))
    waited = journal.records[1].ttft_ns
    assert 2 * step_ns(1, 16) < waited < 2 * step_ns(1, 300) + step_ns(17, 350)


def test_with_one_plan_in_flight_the_device_loses_nothing_here_since_planning_takes_no_time() -> None:
    load = poisson(KIND, 30, per_second=20.0, seed=2)
    times = []
    for depth in (1, 2, 3):
        journal = Engine(LLAMA_8B, replace(limits(512, 16), depth=depth)).run(load)
        times.append(sum(step.num_tokens for step in journal.steps))
        assert all(len(record.gaps) == record.demand.num_output_tokens - 1 for record in journal.records)
    assert times[0] == times[1] == times[2], "and no token is computed for nothing"


def test_a_closed_loop_keeps_each_tenants_clients_busy() -> None:
    few, many = Kind(uniform(10, 20), uniform(5, 50), "few"), Kind(uniform(10, 20), uniform(5, 50), "many")
    open_requests: list[dict[str, int]] = []

    def watch(scheduler: Scheduler) -> None:
        counts = {"few": 0, "many": 0}
        for request in scheduler.state.requests.values():
            counts[request.sequences[0].tenant.name] += 1
        open_requests.append(counts)

    load = closed_loop(few, 20, 2, seed=1) + closed_loop(many, 60, 5, seed=2)
    journal = Engine(LLAMA_8B, limits(512, 16), FCFS, watch).run(load)
    assert len(journal.records) == len(load) == 80
    assert max(counts["few"] for counts in open_requests) == 2
    assert max(counts["many"] for counts in open_requests) == 5
    for name, num_clients in (("few", 2), ("many", 5)):
        own = [record for record in journal.records if record.demand.tenant == name]
        ends = sorted(record.t_end for record in own)
        assert [record.t_arrived for record in own] == [START] * num_clients + ends[:-num_clients]


def test_the_same_run_gives_the_same_journal() -> None:
    load = poisson(KIND, 60, per_second=30.0, seed=5)
    model = replace(LLAMA_8B, num_blocks=120, jitter=0.2)
    for policy in (FCFS, STATIC):
        bounds = limits(256, 8, preemption="auto", inter_token_us=15_000)
        first, second = (Engine(model, bounds, policy).run(load) for _ in range(2))
        assert first == second
        assert summarize(first, Targets()) == summarize(second, Targets())


def test_stays_on_the_executor_are_counted_as_the_scheduler_counts_preemptions() -> None:
    counted = 0

    def watch(scheduler: Scheduler) -> None:
        nonlocal counted
        counted = scheduler.state.counters.num_preemptions

    load = closed_loop(Kind(uniform(100, 300), uniform(200, 400)), 12, 12, seed=4)
    for mode in ("recompute", "swap"):
        model = replace(LLAMA_8B, num_blocks=80)
        journal = Engine(model, limits(128, 16, preemption=mode), FCFS, watch).run(load)
        assert journal.num_preemptions == counted > 5
        assert (journal.num_copied_blocks > 0) == (mode == "swap")
