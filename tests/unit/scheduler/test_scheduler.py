"""The scheduler's verbs, one behaviour a test, against the executor model."""

import pytest

from services.scheduler.core.admission import seed_of_sample
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.core.state import MAX_GENERATION
from services.wire import columns
from services.wire.codec import encode
from services.wire.messages import (
    FailureReason,
    FinishReason,
    Hello,
    Identity,
    Logprobs,
    RowFlag,
    SequenceKey,
    StepResult,
    StepStatus,
)
from tests.unit.scheduler.executor_model import continuation
from tests.unit.scheduler.rig import Rig, Shape, limits, open_model, submit_message

PROMPT = [5, 6, 7, 8, 9]


def num_rows_of(rig: Rig) -> int:
    return sum(len(rows) for rows in rig.row_history)


# length, stop tokens, waste


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_a_length_finish_wastes_no_row(depth: int, max_tokens: int) -> None:
    rig = Rig(limits(depth=depth))
    rig.submit(submit_message("a", PROMPT, max_tokens=max_tokens))
    rig.run()
    assert rig.output("a") == continuation(PROMPT, 0, max_tokens)
    assert rig.close_of("a").reason == FinishReason.LENGTH
    assert num_rows_of(rig) == max_tokens, "one row a token, the prompt's included"
    assert rig.scheduler.state.counters.num_wasted_rows == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_stop_token_wastes_at_most_the_rows_in_flight(depth: int) -> None:
    wanted = continuation(PROMPT, 0, 20)
    stop = wanted[5]
    first = wanted.index(stop)
    rig = Rig(limits(depth=depth))
    rig.submit(submit_message("a", PROMPT, max_tokens=20, stop_ids=(stop,)))
    rig.run()
    close = rig.close_of("a")
    assert rig.output("a") == wanted[: first + 1]
    assert (close.reason, close.matched_token) == (FinishReason.STOP, stop)
    assert rig.scheduler.state.counters.num_wasted_rows == depth - 1


def test_a_stop_token_at_the_limit_is_a_stop() -> None:
    wanted = continuation(PROMPT, 0, 1)
    rig = Rig()
    rig.submit(submit_message("a", PROMPT, max_tokens=1, stop_ids=(wanted[0],)))
    rig.run()
    assert rig.close_of("a").reason == FinishReason.STOP


def test_a_stop_token_before_min_tokens_is_ordinary() -> None:
    wanted = continuation(PROMPT, 0, 6)
    stop = wanted[2]
    assert stop not in wanted[:2] and stop not in wanted[3:]
    for min_tokens, length in ((2, 3), (3, 6)):
        rig = Rig()
        rig.submit(submit_message("a", PROMPT, max_tokens=6, stop_ids=(stop,), min_tokens=min_tokens))
        rig.run()
        assert len(rig.output("a")) == length


def test_absent_max_tokens_goes_to_the_smaller_of_context_and_pool() -> None:
    for num_blocks, context, total in ((64, 40, 40), (9, 400, 32)):
        rig = Rig(num_blocks=num_blocks, block_size=4, context_length=context)
        rig.submit(submit_message("a", PROMPT, max_tokens=None))
        rig.run()
        assert len(rig.output("a")) + len(PROMPT) == total
        assert rig.close_of("a").reason == FinishReason.LENGTH


# refusals


@pytest.mark.parametrize(
    ("length", "max_tokens", "failure"),
    [
        (40, None, FailureReason.CONTEXT_LENGTH),
        (39, None, None),
        (30, 11, FailureReason.CONTEXT_LENGTH),
        (30, 10, None),
    ],
)
def test_what_exceeds_the_context_is_refused(length: int, max_tokens: int | None, failure: FailureReason) -> None:
    rig = Rig(context_length=40)
    rig.submit(submit_message("a", [3] * length, max_tokens=max_tokens))
    rig.run()
    assert rig.close_of("a").failure == (failure or FailureReason.NONE)


@pytest.mark.parametrize(
    ("length", "max_tokens", "failure"),
    [(32, None, FailureReason.KV_CAPACITY), (20, 13, FailureReason.KV_CAPACITY), (20, 12, None), (31, None, None)],
)
def test_what_can_never_fit_the_pool_is_refused(length: int, max_tokens: int | None, failure: FailureReason) -> None:
    rig = Rig(num_blocks=9, block_size=4)
    rig.submit(submit_message("a", [3] * length, max_tokens=max_tokens))
    rig.run()
    assert rig.close_of("a").failure == (failure or FailureReason.NONE)


def test_a_full_queue_refuses_with_a_hint_and_takes_again() -> None:
    rig = Rig(limits(max_num_seqs=1, max_waiting=2))
    for name in ("a", "b", "c"):
        rig.submit(submit_message(name, PROMPT))
    close = rig.close_of("c")
    assert close.failure == FailureReason.QUEUE_FULL and close.retry_after_ms is not None and close.retry_after_ms > 0
    rig.submit(submit_message("n", PROMPT, n=3))
    assert rig.close_of("n", index=2).failure == FailureReason.QUEUE_FULL
    rig.run()
    rig.submit(submit_message("c", PROMPT, incarnation=2))
    rig.run()
    assert rig.close_of("c", incarnation=2).reason == FinishReason.LENGTH


def test_a_draining_scheduler_finishes_what_it_has() -> None:
    rig = Rig()
    rig.submit(submit_message("a", PROMPT))
    rig.scheduler.drain()
    rig.submit(submit_message("b", PROMPT))
    rig.run()
    assert rig.close_of("a").reason == FinishReason.LENGTH
    assert rig.close_of("b").failure == FailureReason.DRAINING and rig.close_of("b").retry_after_ms


def test_a_live_duplicate_of_another_gateway_is_refused_and_the_first_unharmed() -> None:
    rig = Rig()
    rig.submit(submit_message("x", PROMPT))
    refused = rig.submit(submit_message("x", PROMPT, gateway="h", incarnation=9))
    assert refused is not None and refused.failure == FailureReason.DUPLICATE
    assert refused.identity == Identity("h", "x", 9)
    rig.run()
    assert list(rig.outputs) == [SequenceKey("g", "x", 1, 0)]


def test_a_later_use_of_an_id_by_its_gateway_closes_the_older() -> None:
    rig = Rig()
    rig.submit(submit_message("x", PROMPT))
    rig.turn()
    assert rig.submit(submit_message("x", PROMPT, incarnation=2)) is None
    rig.cancel(Identity("g", "x", 1))
    rig.run()
    assert rig.close_of("x").reason == FinishReason.CANCELLED
    assert rig.output("x", incarnation=2) == continuation(PROMPT, 0, 8)
    assert rig.submit(submit_message("x", PROMPT, incarnation=3)) is None, "an ended request is no duplicate"
    rig.run()


# order and batching


def test_requests_join_and_leave_at_any_step() -> None:
    rig = Rig(limits(depth=1))
    rig.submit(submit_message("long", PROMPT, max_tokens=20))
    for _ in range(3):
        rig.turn()
    rig.submit(submit_message("short", PROMPT, max_tokens=2))
    rig.run()
    widths = [len(rows) for rows in rig.row_history]
    assert widths == [1, 1, 1, 2, 2, *[1] * 15]


def test_prefill_chunks_share_the_step_with_decode_rows_under_the_budget() -> None:
    rig = Rig(limits(depth=1, token_budget=8, chunk_size=8))
    rig.submit(submit_message("decode", PROMPT, max_tokens=12))
    rig.turn()
    rig.submit(submit_message("prefill", list(range(2, 22)), max_tokens=1))
    rig.run()
    counts = [[count for _, count in rows] for rows in rig.row_history]
    assert counts[:4] == [[5], [1, 7], [1, 7], [1, 6]]


def test_the_last_chunk_samples_and_no_other() -> None:
    rig = Rig(limits(depth=1, chunk_size=4))
    rig.submit(submit_message("a", list(range(2, 12)), max_tokens=3))
    rig.run()
    flags = [list(columns.unpack(plan.flags)) for plan in rig.plans]
    last = int(RowFlag.SAMPLE | RowFlag.LAST_CHUNK)
    assert flags == [[0], [0], [last], [], []], "then it is carried"


def test_a_steady_step_says_nothing_but_its_number() -> None:
    rig = Rig(limits(depth=2), block_size=16)
    for number in range(4):
        rig.submit(submit_message(f"r{number}", PROMPT, max_tokens=10))
    rig.run()
    steady = rig.plans[2]
    assert (steady.ops, steady.dropped, steady.slots, steady.host_tokens) == ((), b"", b"", b"")


def test_a_plan_does_not_grow_with_what_has_been_generated() -> None:
    rig = Rig(limits(depth=2), num_blocks=128, block_size=16, context_length=512)
    for number in range(4):
        rig.submit(submit_message(f"r{number}", PROMPT, max_tokens=400, salt=str(number)))
    rig.run()
    sizes = [len(encode(plan)) for plan in rig.plans]
    steady, with_blocks = sizes[10:26], max(sizes[10:26])
    assert min(steady) < 40 and max(sizes[-40:]) <= with_blocks + 4, "but for larger numbers in it"


def test_first_come_first_served() -> None:
    rig = Rig(limits(max_num_seqs=2))
    for name in ("a", "b", "c", "d"):
        rig.submit(submit_message(name, PROMPT, max_tokens=5))
    rig.run()
    assert [key.request for key in rig.closes] == ["a", "b", "c", "d"]


def test_a_head_that_does_not_fit_stops_admission() -> None:
    rig = Rig(num_blocks=9, block_size=4)
    rig.submit(submit_message("a", [3] * 20, max_tokens=3))
    rig.submit(submit_message("big", [5] * 20, max_tokens=3))
    rig.submit(submit_message("small", [3], max_tokens=4))
    rig.run()
    assert [key.request for key in rig.closes] == ["a", "big", "small"]


def test_a_preempted_sequence_keeps_its_place_and_its_tokens() -> None:
    rig = Rig(limits(depth=2), num_blocks=9, block_size=4)
    for name in ("a", "b", "c"):
        rig.submit(submit_message(name, PROMPT, max_tokens=20))
    rig.run()
    assert rig.scheduler.state.counters.num_preemptions > 0
    assert [key.request for key in rig.closes] == ["a", "b", "c"]
    for name in ("a", "b", "c"):
        assert rig.output(name) == continuation(PROMPT, 0, 20)


def test_budget_smaller_than_the_number_of_requests() -> None:
    rig = Rig(limits(token_budget=3, chunk_size=3), max_rows=16)
    for number in range(7):
        rig.submit(submit_message(f"r{number}", PROMPT, max_tokens=4))
    rig.run()
    assert all(close.reason == FinishReason.LENGTH for close in rig.closes.values())


# cancel, stop strings, deadlines


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_cancel_at_every_point_frees_everything_and_says_nothing_after(depth: int) -> None:
    """The rig refuses a token after a close and checks blocks and slots after every event."""
    for num_events in range(30):
        rig = Rig(limits(depth=depth, chunk_size=3, max_num_seqs=2), num_blocks=12)
        for name in ("a", "victim", "c"):
            rig.submit(submit_message(name, PROMPT * 2, max_tokens=6))
        for event in range(num_events):
            if event % 2 == 0 or not rig.executor.plans:
                rig.plan()
            else:
                rig.deliver()
        rig.cancel(Identity("g", "victim", 1))
        rig.cancel(Identity("g", "victim", 1))
        ended = rig.close_of("victim").reason
        assert ended in (FinishReason.CANCELLED, FinishReason.LENGTH)
        rig.run()
        for name in ("a", "c"):
            assert rig.output(name) == continuation(PROMPT * 2, 0, 6)


def test_cancel_of_a_waiting_request_needs_no_step() -> None:
    rig = Rig(limits(max_num_seqs=1))
    for name in ("a", "b"):
        rig.submit(submit_message(name, PROMPT))
    rig.turn()
    rig.cancel(Identity("g", "b", 1))
    close = rig.close_of("b")
    assert (close.reason, close.num_output_tokens) == (FinishReason.CANCELLED, 0)
    rig.run()


def test_a_stop_hit_frees_at_once_and_a_late_one_is_nothing() -> None:
    rig = Rig()
    rig.submit(submit_message("a", PROMPT, max_tokens=50))
    rig.turn()
    key = SequenceKey("g", "a", 1, 0)
    rig.stop_hit(key, 0)
    assert rig.close_of("a").reason == FinishReason.STOP and not rig.scheduler.state.running
    rig.stop_hit(key, 0)
    rig.stop_hit(SequenceKey("g", "never", 1, 0), 0)
    rig.run()
    assert len(rig.closes) == 1


def test_a_stop_hit_ends_its_sample_alone() -> None:
    rig = Rig()
    rig.submit(submit_message("a", PROMPT, max_tokens=6, n=3))
    rig.turn()
    rig.stop_hit(SequenceKey("g", "a", 1, 1), 0)
    rig.run()
    reasons = [rig.close_of("a", index=index).reason for index in range(3)]
    assert reasons == [FinishReason.LENGTH, FinishReason.STOP, FinishReason.LENGTH]


def test_deadlines_end_waiting_and_running_requests() -> None:
    rig = Rig(limits(max_num_seqs=1))
    rig.submit(submit_message("running", PROMPT, max_tokens=100, remaining_ms=5))
    rig.submit(submit_message("waiting", PROMPT, remaining_ms=5))
    rig.submit(submit_message("later", PROMPT, remaining_ms=50))
    rig.submit(submit_message("gone", PROMPT, remaining_ms=0))
    assert rig.close_of("gone").failure == FailureReason.DEADLINE
    rig.turn()
    deadline = rig.scheduler.next_deadline()
    assert deadline is not None
    rig.scheduler.expire(deadline - 1)
    rig._after()
    assert len(rig.closes) == 1
    rig.scheduler.expire(deadline + 1_000_000)
    rig._after()
    assert {key.request for key in rig.closes} == {"running", "waiting", "gone"}
    rig.run()
    assert rig.close_of("later").reason == FinishReason.LENGTH


def test_the_deadlines_of_ended_requests_are_forgotten() -> None:
    rig = Rig()
    for number in range(1000):
        rig.submit(submit_message(f"r{number}", [3], max_tokens=1, remaining_ms=10**9))
        rig.turn()
    assert len(rig.scheduler._deadlines) < 100


def test_cancel_all() -> None:
    rig = Rig(limits(max_num_seqs=1))
    for name in ("a", "b"):
        rig.submit(submit_message(name, PROMPT))
    rig.turn()
    rig.scheduler.cancel_all(rig.now)
    rig._after()
    assert {close.reason for close in rig.closes.values()} == {FinishReason.CANCELLED}


# samples, logprobs


def test_each_sample_has_its_own_seed_and_end() -> None:
    rig = Rig()
    rig.submit(submit_message("a", PROMPT, max_tokens=6, n=3, seed=7))
    rig.run()
    for index in range(3):
        assert rig.output("a", index=index) == continuation(PROMPT, seed_of_sample(7, index), 6)
    assert seed_of_sample(7, 0) == 7 and len({seed_of_sample(7, i) for i in range(100)}) == 100


def test_logprobs_are_addressed_to_deltas_and_those_of_ended_rows_vanish() -> None:
    rig = Rig(limits(depth=1, chunk_size=4))
    for name, prompt in (("a", [3]), ("b", [4]), ("chunked", [5] * 9)):
        rig.submit(submit_message(name, prompt, max_tokens=9))
    rig.plan()
    rig.cancel(Identity("g", "a", 1))
    good = rig.executor.step()
    rows = Logprobs(
        columns.pack([0, 1]),
        columns.pack([1, 2]),
        columns.pack([10, 20, 21]),
        columns.pack([1, 1, 2]),
        columns.pack_floats([-1.0, -2.0, -3.0]),
    )
    result = StepResult(good.epoch, good.step, good.status, good.tokens, good.n_out, rows)
    rig.scheduler.absorb(result, rig.now)
    batch = rig.scheduler.take_batch()
    assert batch is not None and batch.deltas is not None and batch.deltas.logprobs is not None
    assert [key.request for key in batch.deltas.sequences] == ["b"]
    logprobs = batch.deltas.logprobs
    assert list(columns.unpack(logprobs.rows)) == [0]
    assert list(columns.unpack(logprobs.token_ids)) == [20, 21]
    assert list(columns.unpack_floats(logprobs.values)) == [-2.0, -3.0]


def test_logprobs_of_ended_rows_alone_are_none() -> None:
    rig = Rig(limits(depth=1))
    rig.submit(submit_message("a", PROMPT))
    rig.plan()
    rig.cancel(Identity("g", "a", 1))
    good = rig.executor.step()
    one = columns.pack([1])
    rows = Logprobs(columns.pack([0]), one, columns.pack([10]), one, columns.pack_floats([-1.0]))
    rig.scheduler.absorb(StepResult(good.epoch, good.step, good.status, good.tokens, good.n_out, rows), rig.now)
    assert rig.scheduler.take_batch() is None


# silent readers


def test_a_silent_reader_pauses_and_comes_back_to_the_same_tokens() -> None:
    rig = Rig(limits(max_unread=2))
    rig.auto_credit = False
    rig.submit(submit_message("a", PROMPT, max_tokens=12))
    while rig.turn():
        pass
    paused_at = len(rig.output("a"))
    assert 0 < paused_at < 12
    rig.cancel(Identity("g", "nobody", 1))
    rig.auto_credit = True
    rig.credit("g")
    rig.run()
    assert rig.output("a") == continuation(PROMPT, 0, 12)


def test_one_silent_gateway_starves_nobody() -> None:
    """It holds every slot and every block when it falls silent; the others take them."""
    for max_num_seqs, num_blocks in ((2, 64), (8, 7)):
        rig = Rig(limits(max_unread=1, max_num_seqs=max_num_seqs), num_blocks=num_blocks, block_size=4)
        rig.auto_credit = False
        for number in range(2):
            rig.submit(submit_message(f"silent{number}", PROMPT, max_tokens=12, gateway="silent", salt=str(number)))
        rig.credit("silent")
        while rig.turn():
            pass
        assert len(rig.scheduler.state.running) == 2
        for number in range(3):
            rig.submit(submit_message(f"r{number}", PROMPT * 2, max_tokens=9))
        for _ in range(200):
            rig.credit("g")
            rig.turn()
        assert all(rig.close_of(f"r{number}").reason == FinishReason.LENGTH for number in range(3))
        assert not any(key.gateway == "silent" for key in rig.closes)
        rig.auto_credit = True
        rig.credit("silent")
        rig.run()
        assert rig.output("silent1", gateway="silent") == continuation(PROMPT, 0, 12)


# failure


def test_a_failed_row_ends_its_sequence_and_nobody_else_notices() -> None:
    rig = Rig(limits(depth=3))
    for name in ("a", "b"):
        rig.submit(submit_message(name, PROMPT, max_tokens=9))
    rig.turn()
    rig.deliver(poison=0)
    assert rig.close_of("a").failure == FailureReason.POISONED_ROW
    rig.run()
    assert rig.output("b") == continuation(PROMPT, 0, 9) and len(rig.closes) == 2


def test_a_failed_step_rewinds_and_keeps_kv() -> None:
    rig = Rig(limits(depth=2, chunk_size=4))
    rig.submit(submit_message("a", list(range(2, 14)), max_tokens=6))
    for _ in range(3):
        rig.turn()
    rig.plan()
    rig.deliver(fails=True)
    run = next(iter(rig.scheduler.state.running))
    assert run.planned == run.confirmed > 0 and run.num_in_flight == 0
    rig.run()
    assert rig.output("a") == continuation(list(range(2, 14)), 0, 6)


def test_a_dead_executor_costs_time_and_no_request() -> None:
    rig = Rig()
    for name in ("a", "b"):
        rig.submit(submit_message(name, PROMPT, max_tokens=9))
    for _ in range(3):
        rig.turn()
    rig.plan()
    rig.kill_executor()
    assert not rig.scheduler.state.running and rig.scheduler.state.pool.num_free == rig.scheduler.state.pool.num_total
    rig.run()
    assert rig.output("a") == rig.output("b") == continuation(PROMPT, 0, 9)


def test_two_failures_put_a_sequence_alone_and_three_end_it() -> None:
    rig = Rig(limits(depth=2), num_blocks=9, block_size=4)
    for name in ("good", "bad"):
        rig.submit(submit_message(name, PROMPT, max_tokens=9))
    rig.plan()
    rig.deliver(fails=True)
    rig.plan()
    rig.deliver(fails=True)
    widths = []
    for _ in range(4):
        rig.plan()
        widths.append(len(rig.executor.plans))
        if rig.executor.plans:
            plan = rig.executor.plans[0]
            assert len(columns.unpack(plan.slots)) <= 1
            rig.deliver()
    assert rig.output("good") and rig.output("bad"), "each ran alone until its next token"
    rig.run()
    assert rig.output("good") == rig.output("bad") == continuation(PROMPT, 0, 9)


def test_a_poisonous_sequence_ends_after_its_third_failure_and_spares_the_rest() -> None:
    rig = Rig(limits(depth=2))
    for name in ("bad", "good"):
        rig.submit(submit_message(name, PROMPT, max_tokens=9))
    for _ in range(60):
        while rig.plan() is not None:
            pass
        if not rig.executor.plans:
            break
        bad = [r.slot for r in rig.scheduler.state.running if r.sequence.key.request == "bad"]
        rows = [run.slot for run in rig.scheduler.state.inflight[0].rows]
        rig.deliver(fails=any(slot in rows for slot in bad))
    assert rig.close_of("bad").failure == FailureReason.STEP_FAILED
    assert rig.output("good") == continuation(PROMPT, 0, 9)
    rig.assert_idle()


def test_running_alone_may_preempt_anyone() -> None:
    """The suspect waits, preempted, while older requests hold every slot: it takes one when its turn comes."""
    rig = Rig(limits(depth=1, max_num_seqs=2), num_blocks=9, block_size=4, max_rows=2)
    for name in ("a", "b"):
        rig.submit(submit_message(name, PROMPT, max_tokens=14))
    for _ in range(2):
        rig.plan()
        rig.deliver(fails=True)
    for sequence in list(rig.scheduler.state.suspects):
        if sequence.key.request == "b" and sequence.run is not None:
            rig.scheduler.state.preempt(sequence.run)
    rig.submit(submit_message("c", PROMPT, max_tokens=3))
    rig.run()
    for name, count in (("a", 14), ("b", 14), ("c", 3)):
        assert rig.output(name) == continuation(PROMPT, 0, count)


def test_a_smaller_executor_is_judged_again_and_losers_fail() -> None:
    rig = Rig(num_blocks=33, block_size=4)
    rig.submit(submit_message("fits", PROMPT, max_tokens=9))
    rig.submit(submit_message("loses", [3] * 30, max_tokens=60))
    for _ in range(3):
        rig.turn()
    rig.shape = Shape(num_blocks=9)
    rig.kill_executor()
    assert rig.close_of("loses").failure == FailureReason.KV_CAPACITY
    rig.run()
    assert rig.output("fits") == continuation(PROMPT, 0, 9)


def test_notices_about_older_executors_and_epochs_are_nothing() -> None:
    rig = Rig()
    rig.submit(submit_message("a", PROMPT, max_tokens=5))
    rig.turn()
    rig.scheduler.executor_lost(99, rig.now)
    rig.scheduler.absorb(StepResult(rig.scheduler.state.epoch - 1, 1, StepStatus.OK), rig.now)
    assert rig.scheduler.executor_ready(rig.executor.ready(99), rig.now) is None
    rig.run()
    assert rig.output("a") == continuation(PROMPT, 0, 5)


def test_an_unannounced_new_executor_is_a_death() -> None:
    rig = Rig()
    rig.submit(submit_message("a", PROMPT, max_tokens=5))
    rig.turn()
    rig.plan()
    rig.executor = open_model(77, rig.shape)
    hello = rig.scheduler.executor_ready(rig.executor.ready(0), rig.now)
    assert isinstance(hello, Hello) and rig.scheduler.plan(rig.now) is None
    rig.scheduler.executor_ready(rig.executor.hello(hello), rig.now)
    rig.run()
    assert rig.output("a") == continuation(PROMPT, 0, 5)


# the operator


def test_pause_keeps_taking_results_and_resume_goes_on() -> None:
    rig = Rig()
    rig.submit(submit_message("a", PROMPT, max_tokens=5))
    rig.plan()
    rig.scheduler.pause(True)
    assert rig.plan() is None
    rig.deliver()
    assert rig.plan() is None and len(rig.output("a")) == 1
    rig.scheduler.pause(False)
    rig.run()
    assert rig.output("a") == continuation(PROMPT, 0, 5)


def test_load_tells_the_numbers() -> None:
    rig = Rig(limits(max_num_seqs=1))
    for name in ("a", "b"):
        rig.submit(submit_message(name, PROMPT, max_tokens=3))
    rig.plan()
    load = rig.scheduler.load(rig.now)
    assert (load.num_running, load.num_waiting, load.num_blocks - load.num_free_blocks) == (1, 1, 2)
    rig.run()
    load = rig.scheduler.load(rig.now)
    assert (load.num_running, load.num_waiting, load.num_output_tokens, load.num_prompt_tokens) == (0, 0, 6, 10)
    assert load.drain_rate > 0


def test_depth_has_bounds() -> None:
    for depth in (0, 4):
        with pytest.raises(AssertionError, match="depth"):
            Scheduler(limits(depth=depth))


def test_a_server_may_run_for_longer_than_a_column_can_count_its_generations() -> None:
    rig = Rig()
    rig.scheduler.state.generation = MAX_GENERATION - 2
    for name in "abcde":
        rig.submit(submit_message(name, PROMPT, max_tokens=3))
    rig.run()
    for name in "abcde":
        assert rig.output(name) == continuation(PROMPT, 0, 3)
