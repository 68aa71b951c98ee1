"""The orders of service: priority with aging, fair shares of tenants, and the static baseline."""

import itertools
import random

import pytest

from services.scheduler.core.policy import FAIR, FCFS, STATIC, Policy, priority
from services.scheduler.core.tenant import CACHED_WEIGHT, DECODE_WEIGHT, MAX_IDLE, PREFILL_WEIGHT, Tenants
from services.wire.messages import FinishReason, Identity
from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import Rig, limits, submit_message

PROMPT = [5, 6, 7, 8, 9]


def order_of_ends(rig: Rig) -> list[str]:
    return [key.request for key in rig.closes]


# priority


def test_higher_priority_goes_first_and_equals_keep_their_order() -> None:
    rig = Rig(limits(max_num_seqs=1), policy=priority(10**9))
    rig.scheduler.pause(True)
    for name, level in (("a", 0), ("b", 1), ("c", 0), ("d", 2), ("e", 1)):
        rig.submit(submit_message(name, PROMPT, max_tokens=2, priority=level))
    rig.scheduler.pause(False)
    rig.run()
    assert order_of_ends(rig) == ["d", "b", "e", "a", "c"]


@pytest.mark.parametrize("seed", range(5))
def test_waiting_is_worth_a_priority_level_and_no_more(seed: int) -> None:
    """The stated bound, and that it is tight: whoever comes less than the difference in levels later goes first."""
    aging = 1000
    rng = random.Random(seed)
    rig = Rig(limits(max_num_seqs=1), policy=priority(aging))
    rig.scheduler.pause(True)
    submitted: dict[str, tuple[int, int]] = {}
    for number in range(30):
        rig.now += rng.randint(0, 400)
        name, level = f"r{number}", rng.randint(-2, 2)
        submitted[name] = rig.now, level
        rig.submit(submit_message(name, [3], max_tokens=1, priority=level))
    rig.scheduler.pause(False)
    rig.run()
    rank = {name: place for place, name in enumerate(order_of_ends(rig))}
    num_overtaken = 0
    for first, second in itertools.combinations(submitted, 2):
        (t, q), (later, p) = submitted[first], submitted[second]
        if later - t > (p - q) * aging:
            assert rank[first] < rank[second], "overtaken beyond the bound"
        elif later - t < (p - q) * aging:
            assert rank[second] < rank[first], "a higher priority waits for a lower one"
            num_overtaken += 1
    assert num_overtaken > 10


def test_a_higher_priority_takes_the_place_of_the_lowest_and_latest_running() -> None:
    """Slots, not blocks, are what is short: two run, and one that counts more arrives."""
    rig = Rig(limits(max_num_seqs=2), policy=priority(10**9))
    for name in ("low", "lower late"):
        rig.submit(submit_message(name, PROMPT, max_tokens=20))
    rig.turns(3)
    rig.submit(submit_message("high", PROMPT, max_tokens=2, priority=1))
    rig.turns(3)
    assert {run.sequence.key.request for run in rig.scheduler.state.running} == {"low", "high"}
    rig.run()
    assert order_of_ends(rig) == ["high", "low", "lower late"]
    assert rig.output("lower late") == continuation(PROMPT, 0, 20)


def test_nobody_is_displaced_in_a_plan_that_somebody_joined() -> None:
    """Of two that count more the first finds a place; the second takes one in the next plan, when it is its turn."""
    rig = Rig(limits(depth=1, max_num_seqs=2), policy=priority(10**9))
    rig.submit(submit_message("low", PROMPT, max_tokens=20))
    rig.turns(2)
    for name in ("first", "second"):
        rig.submit(submit_message(name, PROMPT, max_tokens=9, priority=1, salt=name))
    rig.turns(1)
    assert [name for name, _ in rig.row_history[-1]] == ["low", "first"]
    rig.turns(2)
    assert [name for name, _ in rig.row_history[-1]] == ["first", "second"]
    rig.run()


def test_the_place_is_taken_in_the_plan_after_and_no_event_is_needed_for_it() -> None:
    """One slot, nothing in flight: giving it up makes no step by itself, so that the same call plans the next."""
    rig = Rig(limits(depth=1, max_num_seqs=1), policy=priority(10**9))
    rig.submit(submit_message("low", PROMPT, max_tokens=20))
    rig.turns(3)
    rig.submit(submit_message("high", PROMPT, max_tokens=2, priority=1, salt="other"))
    assert rig.plan() is not None
    rig.deliver()
    assert rig.row_history[-1] == [("high", 5)]
    rig.run()


def test_who_displaces_whom() -> None:
    """Only a higher level, and only one that goes first; an equal does not, though it is older."""
    policy = priority(1000)
    rig = Rig(policy=policy)
    rig.scheduler.pause(True)
    for name, level, now in (("old", 0, 1), ("young", 0, 500), ("high", 1, 600), ("late", 1, 2000)):
        rig.now = now
        rig.submit(submit_message(name, PROMPT, priority=level))
    waiting = {sequence.key.request: sequence for sequence in rig.scheduler.state.waiting}
    pairs = {(one, other) for one in waiting for other in waiting if policy.displaces(waiting[one], waiting[other])}
    assert pairs == {("high", "old"), ("high", "young")}


@pytest.mark.parametrize(("level", "wait"), [(0, 0), (-1, 0), (1, 2000)])
def test_nobody_makes_way_for_an_equal_a_lower_or_one_that_comes_too_late(level: int, wait: int) -> None:
    rig = Rig(limits(max_num_seqs=1), policy=priority(1000))
    rig.submit(submit_message("running", PROMPT, max_tokens=9))
    rig.turns(2)
    rig.now += wait
    rig.submit(submit_message("other", PROMPT, max_tokens=1, priority=level))
    rig.run()
    assert order_of_ends(rig) == ["running", "other"]
    assert rig.scheduler.state.counters.num_preemptions == 0


def test_blocks_are_taken_from_the_lowest_priority() -> None:
    """Three grow in a pool for two; the one that counts least gives way, and never twice in one plan."""
    rig = Rig(limits(depth=2), num_blocks=11, block_size=4, policy=priority(10**9))
    for name, level in (("five", 5), ("one", 1), ("three", 3)):
        rig.submit(submit_message(name, PROMPT, max_tokens=18, priority=level, salt=name))
    preempted: list[str] = []
    while rig.turn():
        preempted += [s.key.request for s in rig.scheduler.state.waiting if s.key.request not in preempted]
    assert preempted[0] == "one" and "five" not in preempted
    assert order_of_ends(rig) == ["five", "three", "one"]
    for name in ("five", "one", "three"):
        assert rig.output(name) == continuation(PROMPT, 0, 18)


# fair


def service_gaps(policy: Policy) -> tuple[list[int], int]:
    """The gap in service of two tenants at every step while both have requests waiting, and the bound of the paper."""
    max_prompt, num_blocks, block_size = 20, 33, 4
    rig = Rig(limits(depth=2, max_num_seqs=6), num_blocks=num_blocks, block_size=block_size, policy=policy)
    rng = random.Random(3)
    for number in range(16):  # one tenant asks for much and comes first, the other for little
        rig.submit(submit_message(f"much{number}", [3] * max_prompt, max_tokens=30, tenant="much"))
    for number in range(30):
        prompt = [rng.randint(2, 49) for _ in range(4)]
        rig.submit(submit_message(f"little{number}", prompt, max_tokens=5, tenant="little"))
    gaps: list[int] = []
    state = rig.scheduler.state
    while True:
        tenants = {sequence.tenant.name: sequence.tenant for sequence in state.waiting}
        if len(tenants) < 2:
            break
        gaps.append(abs(tenants["much"].served - tenants["little"].served))
        rig.turns(1)
    rig.run()
    bound = 2 * max(PREFILL_WEIGHT * max_prompt, DECODE_WEIGHT * (num_blocks - 1) * block_size)
    return gaps, bound


def test_the_service_gap_of_two_backlogged_tenants_is_bounded() -> None:
    """2 x max(w_p x longest prompt, w_q x KV pool), as in the paper that the policy follows; first come, first served
    breaks it."""
    gaps, bound = service_gaps(FAIR)
    assert len(gaps) > 20 and max(gaps) <= bound
    gaps, bound = service_gaps(FCFS)
    assert max(gaps) > bound


def test_idleness_is_not_saved_up() -> None:
    """One tenant worked alone for long; another that comes back shares from now on, and does not shut the first out."""
    rig = Rig(limits(max_num_seqs=1), policy=FAIR)
    rig.submit(submit_message("early", PROMPT, max_tokens=2, tenant="idle"))
    rig.run()
    for number in range(20):
        rig.submit(submit_message(f"busy{number}", PROMPT, max_tokens=10, tenant="busy"))
    for _ in range(60):
        rig.turn()
    num_before = len(rig.closes)
    for number in range(8):
        rig.submit(submit_message(f"back{number}", PROMPT, max_tokens=10, tenant="idle"))
    rig.run()
    after = order_of_ends(rig)[num_before : num_before + 12]
    assert 4 <= sum(name.startswith("busy") for name in after) <= 8, "they take turns"


def test_idleness_is_saved_up_to_a_head_start_and_no_further() -> None:
    """As before, with a head start of two requests of five prompt and ten output tokens."""
    rig = Rig(limits(max_num_seqs=1, head_start=2 * (5 + 2 * 10)), policy=FAIR)
    for number in range(20):
        rig.submit(submit_message(f"busy{number}", PROMPT, max_tokens=10, tenant="busy"))
    rig.turns(60)
    num_before = len(rig.closes)
    for number in range(8):
        rig.submit(submit_message(f"back{number}", PROMPT, max_tokens=10, tenant="back"))
    rig.run()
    after = order_of_ends(rig)[num_before + 1 : num_before + 11]
    assert [name[:4] for name in after[:2]] == ["back", "back"], "the head start"
    assert 3 <= sum(name.startswith("back") for name in after[2:]) <= 5, "they take turns"


def test_a_prompt_is_charged_as_it_is_computed() -> None:
    rig = Rig(limits(depth=1, token_budget=4, chunk_size=4), policy=FAIR)
    rig.submit(submit_message("long", [3] * 30, max_tokens=1, tenant="t"))
    (tenant,) = {sequence.tenant for sequence in rig.scheduler.state.waiting}
    rig.turns(2)
    assert tenant.served == 2 * 4 * PREFILL_WEIGHT
    rig.run()
    assert tenant.served == 30 * PREFILL_WEIGHT + DECODE_WEIGHT


def test_a_prompt_found_in_the_cache_costs_its_tenant_a_tenth() -> None:
    rig = Rig(policy=FAIR, block_size=4)
    rig.submit(submit_message("first", PROMPT, max_tokens=1, tenant="x"))
    rig.run()
    for name, tenant, salt in (("hit", "hit", ""), ("miss", "miss", "salt")):
        rig.submit(submit_message(name, PROMPT, max_tokens=8, tenant=tenant, salt=salt))
    floor = next(iter(rig.scheduler.state.waiting)).tenant.served
    rig.plan()
    served = {run.sequence.tenant.name: run.sequence.tenant.served - floor for run in rig.scheduler.state.running}
    one_token = DECODE_WEIGHT
    assert served == {"hit": PREFILL_WEIGHT + 4 * CACHED_WEIGHT + one_token, "miss": 5 * PREFILL_WEIGHT + one_token}
    rig.run()


def test_a_prompt_computed_again_after_preemption_is_charged_once() -> None:
    rig = Rig(limits(prefix_cache=False), num_blocks=9, block_size=4, policy=FAIR)
    for name in ("a", "b", "c"):
        rig.submit(submit_message(name, PROMPT, max_tokens=20, tenant="t"))
    (tenant,) = {sequence.tenant for sequence in rig.scheduler.state.waiting}
    rig.run()
    assert rig.scheduler.state.counters.num_preemptions > 0
    assert tenant.served == 3 * (5 * PREFILL_WEIGHT + 20 * DECODE_WEIGHT)


def test_a_tenant_keeps_its_debt_while_idle_and_many_idle_tenants_are_not_kept() -> None:
    tenants = Tenants()
    tenants.join("base")  # keeps the floor at zero
    for name in ("first", *(f"t{number}" for number in range(MAX_IDLE)), "last"):
        tenant = tenants.join(name)
        tenant.served = 500
        tenants.leave(tenant)
    assert tenants.join("last").served == 500
    assert tenants.join("first").served == 0, "the longest idle are forgotten when there are too many"


# static


def slot_steps(policy: Policy, depth: int, num_waiting: int) -> list[int]:
    """Rows of each step: a batch of eight, one of 500 steps and seven of 50, and more of 50 waiting."""
    rig = Rig(limits(depth=depth, max_num_seqs=8), num_blocks=200, block_size=16, context_length=1024, policy=policy)
    for number, max_tokens in enumerate([500] + [50] * (7 + num_waiting)):
        rig.submit(submit_message(f"r{number}", [3], max_tokens=max_tokens))
    widths: list[int] = []
    while len(rig.scheduler.state.waiting) and len(widths) < 500:
        rig.turns(1)
        widths.append(len(rig.row_history[-1]))
    return widths


def test_a_static_batch_idles_as_in_the_textbook() -> None:
    """4000 slot steps until the longest has ended, of which 7 x 450 do nothing."""
    widths = slot_steps(STATIC, depth=1, num_waiting=1)
    assert len(widths) == 500 and sum(8 - width for width in widths) == 3150


@pytest.mark.parametrize("depth", [1, 2])
def test_continuous_batching_idles_no_slot_while_work_waits(depth: int) -> None:
    widths = slot_steps(FCFS, depth, num_waiting=64)
    assert widths == [8] * 500


def test_the_next_static_batch_forms_when_the_last_has_ended() -> None:
    rig = Rig(limits(max_num_seqs=2), policy=STATIC)
    for number, max_tokens in enumerate((4, 2, 3, 3)):
        rig.submit(submit_message(f"r{number}", [3], max_tokens=max_tokens))
    rig.run()
    pairs = [{name for name, _ in rows} for rows in rig.row_history]
    assert all(pair <= {"r0", "r1"} or pair <= {"r2", "r3"} for pair in pairs)


def test_a_static_batch_does_not_wait_for_a_silent_reader() -> None:
    rig = Rig(limits(max_num_seqs=2, max_unread=1), policy=STATIC)
    rig.auto_credit = False
    rig.submit(submit_message("silent", PROMPT, max_tokens=9, gateway="silent"))
    while rig.turn():
        pass
    rig.submit(submit_message("other", PROMPT, max_tokens=9))
    for _ in range(30):
        rig.credit("g")
        rig.turn()
    assert rig.close_of("other").reason == FinishReason.LENGTH
    rig.cancel(Identity("silent", "silent", 1))
    rig.assert_idle()
