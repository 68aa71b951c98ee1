"""Plans become batches: the difference from the last step, the packed arrays, and every breach of the protocol."""

import dataclasses

import msgspec
import numpy as np
import pytest

from services.executor.batch import StepBatch
from services.executor.rows import PlanDecoder
from services.executor.slots import PlanError
from services.wire import columns
from services.wire.messages import AppendBlocks, CopyBlocks, CopyDirection, Op, RowFlag, SlotRetire, StepPlan
from tests.unit.executor.rig import Row, append, init, plan, small_capacity


def decoder_with(*plans: StepPlan) -> PlanDecoder:
    decoder = PlanDecoder(small_capacity())
    for one in plans:
        decoder.decode(one, 0)
    return decoder


# Slot 1 has a prompt of 6 in blocks 9, 3 and samples; slot 2 has computed 4 of its prompt in block 5.
FIRST = plan(
    1,
    [init(1, 6), init(2, 8), append(1, [9, 3]), append(2, [5, 6])],
    [Row(1, 0, [10, 11, 12, 13, 14, 15]), Row(2, 0, [20, 21, 22, 23], samples=False)],
)


def test_a_batch_packs_the_new_tokens_of_all_rows_in_one_dimension() -> None:
    batch = PlanDecoder(small_capacity()).decode(FIRST, received_ns=5)
    assert batch.received_ns == 5
    assert batch.cu_seqlens_q.tolist() == [0, 6, 10]
    assert batch.token_ids.tolist() == [10, 11, 12, 13, 14, 15, 20, 21, 22, 23]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert batch.slot_mapping.tolist() == [36, 37, 38, 39, 12, 13, 20, 21, 22, 23]
    assert batch.kv_lens.tolist() == [6, 4]
    assert batch.sampling_rows.tolist() == [0]
    assert batch.last_tokens.tolist() == [5, 9]
    assert batch.block_tables[0].tolist() == [9, 3]


def test_a_row_that_sampled_is_carried_with_its_future_token() -> None:
    decoder = decoder_with(FIRST)
    batch = decoder.decode(plan(2, rows=[Row(2, 4, [24, 25, 26, 27])], dropped=[1]), 0)
    assert batch.slots.tolist() == [1, 2]
    assert batch.positions.tolist() == [6, 4]
    assert batch.counts.tolist() == [1, 4]
    assert batch.future_rows.tolist() == [0]
    assert batch.sampling_rows.tolist() == [0, 1]
    assert batch.token_ids.tolist() == [0, 24, 25, 26, 27]
    both = decoder.decode(plan(3, [append(2, [7], 2)]), 0)
    assert both.slots.tolist() == [1, 2]
    assert both.positions.tolist() == [7, 8]
    assert both.slot_mapping.tolist() == [3 * 4 + 3, 7 * 4]


def test_a_dropped_row_may_come_back_later_as_an_added_future_row() -> None:
    decoder = decoder_with(FIRST, plan(2, dropped=[0, 1]))
    batch = decoder.decode(plan(3, rows=[Row(1, 6)]), 0)
    assert batch.positions.tolist() == [6]
    assert batch.future_rows.tolist() == [0]


def test_after_a_plan_without_rows_the_baseline_is_empty() -> None:
    decoder = decoder_with(FIRST, plan(2, dropped=[0, 1]))
    assert decoder.decode(plan(3), 0).num_rows == 0


def test_a_restart_forgets_rows_and_slots() -> None:
    decoder = decoder_with(FIRST)
    decoder.restart()
    batch = decoder.decode(plan(9, [init(1, 6), append(1, [9, 3])], [Row(1, 5, [15])]), 0)
    assert batch.slots.tolist() == [1] and batch.positions.tolist() == [5]


def test_a_slot_takes_a_new_generation_after_it_was_retired() -> None:
    decoder = decoder_with(FIRST)
    batch = decoder.decode(plan(2, [SlotRetire(1, 1), init(1), append(1, [30])], [Row(1, 2, [7])], [0, 1]), 0)
    assert batch.block_tables.tolist() == [[30]]


def test_blocks_of_several_slots_join_in_one_op_in_any_order() -> None:
    op = AppendBlocks(columns.pack([2, 1, 2]), columns.pack([3, 2, 2]), columns.pack([40, 41, 42]))
    batch = decoder_with(FIRST).decode(plan(2, [op], [Row(2, 4, [1] * 12)], [1]), 0)
    assert batch.block_tables.tolist() == [[9, 3, 41, 0], [5, 6, 42, 40]]


BROKEN_ROWS: dict[str, tuple[list[Row], list[int]]] = {
    "another generation lives here": ([Row(1, 6, generation=8)], [0, 1]),
    "slot 3 was not initialised": ([Row(3, 0, [1])], [0, 1]),
    "slot 0 is not within 1..8": ([Row(0, 0, [1])], [0, 1]),
    "slot 99 is not within 1..8": ([Row(99, 0, [1])], [0, 1]),
    "two rows in one step": ([Row(1, 6)], [1]),
    "not the continuation": ([Row(2, 5, [1])], [0, 1]),
    "past its last block": ([Row(2, 4, [1] * 5)], [0, 1]),
    "a future token before anything was sampled": ([Row(2, 4)], [0, 1]),
    "host tokens after a token was sampled": ([Row(1, 6, [1])], [0, 1]),
    "a row that did not sample is carried": ([], [0]),
    "row 7 of a step of 2 rows": ([], [7]),
    "token 1000 is not within 0..999": ([Row(2, 4, [3, 1000])], [0, 1]),
    "token -1 is not within 0..999": ([Row(2, 4, [-1])], [0, 1]),
}


@pytest.mark.parametrize("why", BROKEN_ROWS)
def test_rows_that_break_the_protocol_are_named(why: str) -> None:
    rows, dropped = BROKEN_ROWS[why]
    with pytest.raises(PlanError, match=why):
        decoder_with(FIRST).decode(plan(2, rows=rows, dropped=dropped), 0)


GOOD = plan(2, rows=[Row(2, 4, [1, 2])], dropped=[0, 1])
BROKEN_COLUMNS: dict[str, dict[str, bytes]] = {
    "differ in length": {"positions": columns.pack([4, 5])},
    "no whole number of int32": {"host_tokens": b"\x01\x02\x03"},
    "1 host tokens for rows of 2": {"host_tokens": columns.pack([1])},
    "a row without a token": {"counts": columns.pack([0]), "host_tokens": b""},
    "past the context": {"positions": columns.pack([2**31 - 1])},
}


@pytest.mark.parametrize("why", BROKEN_COLUMNS)
def test_columns_that_break_the_protocol_are_named(why: str) -> None:
    # Slot 2 is fresh: its first row may begin anywhere within its blocks.
    decoder = decoder_with(plan(1, [init(2), append(2, [5, 6])]))
    with pytest.raises(PlanError, match=why):
        decoder.decode(msgspec.structs.replace(GOOD, dropped=b"", **BROKEN_COLUMNS[why]), 0)


def test_a_future_token_among_others_is_named() -> None:
    broken = plan(2, rows=[Row(1, 6, [1, 2], flags=RowFlag.FUTURE_INPUT)], dropped=[0, 1])
    with pytest.raises(PlanError, match="a future token among others"):
        decoder_with(FIRST).decode(broken, 0)


BROKEN_OPS: dict[str, Op] = {
    "slot 1 still holds generation 1": init(1),
    "slot 9 is not within 1..8": init(9),
    "slot 0 is not within": init(0),
    "slot 1 holds 1, not generation 5": SlotRetire(1, 5),
    "slot 3 holds -1, not generation 3": SlotRetire(3, 3),
    "starts do not continue the tables of slots": append(1, [20], 3),
    "starts do not continue the tables": append(1, [20], 1),
    "block 0 is not within 1..63": append(1, [0], 2),
    "block 64 is not within 1..63": append(1, [64], 2),
    "slot 5 was not initialised": append(5, [1]),
    "more than 32 blocks": append(1, list(range(1, 33)), 2),
    "columns of different lengths": AppendBlocks(columns.pack([1]), columns.pack([2]), b""),
    "block 70 is not within 1..63": CopyBlocks(1, CopyDirection.WITHIN, columns.pack([70]), columns.pack([1])),
    "block 0 is not within 0..-1": CopyBlocks(1, CopyDirection.OUT, columns.pack([1]), columns.pack([0])),
}


@pytest.mark.parametrize("why", BROKEN_OPS)
def test_operations_that_break_the_protocol_are_named(why: str) -> None:
    with pytest.raises(PlanError, match=why):
        decoder_with(FIRST).decode(plan(2, [BROKEN_OPS[why]], dropped=[0, 1]), 0)


def test_the_same_index_given_twice_is_no_continuation() -> None:
    op = AppendBlocks(columns.pack([1, 1]), columns.pack([3, 3]), columns.pack([20, 21]))
    with pytest.raises(PlanError, match="starts do not continue"):
        decoder_with(FIRST).decode(plan(2, [op], dropped=[0, 1]), 0)


def test_a_retired_slot_that_is_still_carried_is_named() -> None:
    with pytest.raises(PlanError, match="slot 1 was not initialised"):
        decoder_with(FIRST).decode(plan(2, [SlotRetire(1, 1)], dropped=[1]), 0)


def test_a_missing_step_is_named() -> None:
    with pytest.raises(PlanError, match="step 3 follows step 1"):
        decoder_with(FIRST).decode(plan(3, dropped=[0, 1]), 0)


# Both rows decode, so that the steps that follow only carry them.
DECODING = (FIRST, plan(2, rows=[Row(2, 4, [24, 25, 26, 27])], dropped=[1]), plan(3, [append(2, [7], 2)]))


def test_a_step_that_carries_decode_rows_is_the_step_that_names_them_anew() -> None:
    carrying, naming = decoder_with(*DECODING), decoder_with(*DECODING)
    blocks: dict[int, list[Op]] = {
        4: [append(1, [40], 2)],
        7: [append(2, [42], 3)],
        8: [append(1, [41], 3)],
        11: [append(2, [43], 4)],
    }
    flags = 0
    for step in range(4, 12):
        if step == 9:  # a change between steps that are alike
            flags = RowFlag.MASKED
        rows = [Row(slot, 3 + slot + step, flags=flags) for slot in (1, 2)]
        named_plan = plan(step, blocks.get(step, []), rows, [0, 1])
        named = naming.decode(named_plan, step)
        carried = carrying.decode(named_plan if step == 9 else plan(step, blocks.get(step, [])), step)
        for field in dataclasses.fields(StepBatch):
            one, other = getattr(carried, field.name), getattr(named, field.name)
            assert np.array_equal(one, other), f"step {step}: {field.name}: {one} is not {other}"


BROKEN_CARRIED: dict[str, list[Op]] = {
    "row 0: slot 1 generation 1 position 8 count 1: past its last block": [append(2, [40], 3)],
    "slot 2 was not initialised": [SlotRetire(2, 2)],
    "row 1: slot 2 generation 2 position 9 count 1: another generation lives here": [
        SlotRetire(2, 2),
        msgspec.structs.replace(init(2), generation=5),
    ],
}


@pytest.mark.parametrize("why", BROKEN_CARRIED)
def test_decode_rows_that_can_no_longer_be_carried_are_named(why: str) -> None:
    with pytest.raises(PlanError, match=why):
        decoder_with(*DECODING).decode(plan(4, BROKEN_CARRIED[why]), 0)


def test_decode_rows_are_not_carried_past_the_context() -> None:
    capacity = small_capacity()
    end = capacity.card.context_length
    decoder = PlanDecoder(capacity)
    blocks = append(1, list(range(1, capacity.max_blocks_per_slot + 1)))
    decoder.decode(plan(1, [init(1, end), blocks], [Row(1, end - 3, [5])]), 0)
    assert [decoder.decode(plan(step), 0).kv_lens.tolist() for step in (2, 3)] == [[end - 1], [end]]
    with pytest.raises(PlanError, match="past the context"):
        decoder.decode(plan(4), 0)


def test_a_row_that_was_scored_is_no_longer_when_it_is_carried() -> None:
    decoder = decoder_with(*DECODING)
    scored = decoder.decode(plan(4, [append(1, [40], 2)], [Row(1, 8, flags=RowFlag.PROMPT_LOGPROBS)], [0]), 0)
    assert scored.prompt_logprob_rows.tolist() == [1]
    assert decoder.decode(plan(5), 0).prompt_logprob_rows.tolist() == []
