"""The parts of a launch: buckets, layouts, padding, the ring's fence, tapes, copies, the choice of attention."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from services.executor.batch import Rows, StepBatch, pack
from services.executor.cuda.buckets import bucket_of, buckets_up_to
from services.executor.cuda.choice import Facts, choose
from services.executor.cuda.device import CpuDevice, Event
from services.executor.cuda.layout import Field, Layout
from services.executor.cuda.memory import runs
from services.executor.cuda.ring import Ring
from services.executor.cuda.staging import HOST_TOKEN, fill, forward_fields, stage
from services.executor.cuda.tape import TapedGraph
from services.runtime.settings import SettingsError
from services.wire.messages import RowFlag


def batch_of(counts: list[int], futures: tuple[int, ...] = ()) -> StepBatch:
    """Rows of slots 1, 2, ... whose blocks are 11, 12, ..., each at position 2 of its one block."""
    num_rows = len(counts)
    flags = [int(RowFlag.SAMPLE | (RowFlag.FUTURE_INPUT if row in futures else 0)) for row in range(num_rows)]
    num_host = sum(count for row, count in enumerate(counts) if row not in futures)
    rows = Rows(
        slots=np.arange(1, num_rows + 1, dtype=np.int32),
        generations=np.zeros(num_rows, np.int32),
        positions=np.full(num_rows, 2, np.int32),
        counts=np.array(counts, np.int32),
        flags=np.array(flags, np.int32),
        host_tokens=np.arange(100, 100 + num_host, dtype=np.int32),
    )
    tables = np.arange(10, 10 + num_rows + 1, dtype=np.int32)[:, None] * np.ones(8, np.int32)
    return pack(rows, tables, block_size=16, step=1, received_ns=0)


def test_buckets_rise_to_the_most_rows() -> None:
    assert buckets_up_to(0) == ()
    assert buckets_up_to(1) == (1,)
    assert buckets_up_to(10) == (1, 2, 4, 8, 10)
    assert buckets_up_to(40) == (1, 2, 4, 8, 12, 16, 24, 32, 40)
    assert len(buckets_up_to(256)) == 36


@pytest.mark.parametrize(
    ("counts", "expected"), [([1], 1), ([1] * 3, 4), ([1] * 4, 4), ([1] * 9, None), ([1, 2], None), ([], None)]
)
def test_a_step_takes_the_smallest_bucket_that_holds_it(counts: list[int], expected: int | None) -> None:
    assert bucket_of(batch_of(counts), buckets_up_to(8)) == expected


def test_layouts_that_begin_alike_lie_alike() -> None:
    small = Layout(forward_fields(4, 4))
    large = Layout([*forward_fields(4, 4), Field("more", np.int64, (3,)), Field("none", np.float32, (0, 4))])
    memory = torch.zeros(large.num_bytes, dtype=torch.uint8)
    for index, array in enumerate(large.arrays(memory).values()):
        array.fill(index + 1)
    for index, tensor in enumerate(small.tensors(memory).values()):
        assert tensor.tolist() == [index + 1] * len(tensor)
    more = large.tensors(memory)
    assert more["more"].tolist() == [7, 7, 7] and more["none"].shape == (0, 4)


def test_padding_is_the_dummies_own_and_nothing_of_an_older_step_is_left() -> None:
    batch = batch_of([1, 1, 1], futures=(1,))
    staged = stage(batch, None, bucket=4)
    memory = torch.full((staged.layout.num_bytes,), 255, dtype=torch.uint8)
    arrays = staged.layout.arrays(memory)
    fill(arrays, staged)
    assert arrays["token_ids"].tolist() == [100, 0, 101, 0]
    assert arrays["sources"].tolist() == [HOST_TOKEN, 2, HOST_TOKEN, 0]
    assert arrays["positions"].tolist() == [2, 2, 2, 0]
    assert arrays["cells"].tolist() == [11 * 16 + 2, 12 * 16 + 2, 13 * 16 + 2, 0]
    assert arrays["kv_lens"].tolist() == [3, 3, 3, 1] and arrays["cu_seqlens_k"].tolist() == [0, 3, 6, 9, 10]
    assert arrays["table"][:, 0].tolist() == [11, 12, 13, 0] and not arrays["table"][:, 1:].any()
    assert arrays["slots"].tolist() == [1, 2, 3] and arrays["last"].tolist() == [0, 1, 2]


def test_a_mixed_step_has_its_rows_sorted_out() -> None:
    staged = stage(batch_of([3, 1, 70]), None, bucket=None)
    arrays = staged.layout.arrays(torch.zeros(staged.layout.num_bytes, dtype=torch.uint8))
    fill(arrays, staged)
    assert arrays["cu_seqlens_q"].tolist() == [0, 3, 4, 74]
    assert arrays["decode_rows"].tolist() == [1]
    assert arrays["tiles"].tolist() == [[0, 0], [2, 0], [2, 64]]


@dataclass
class DrivenEvent:
    """Passes when the test says so."""

    has_passed: bool = True

    def record(self) -> None:
        self.has_passed = False

    def is_done(self) -> bool:
        return self.has_passed

    def wait(self) -> None:
        assert self.has_passed

    def ms_since(self, earlier: Event) -> float:
        raise NotImplementedError


@dataclass
class Slot:
    done: DrivenEvent = field(default_factory=DrivenEvent)


def test_a_slot_is_free_again_only_after_the_device_is_done_with_it() -> None:
    slots = [Slot(), Slot()]
    ring = Ring(slots, patience_s=0.01)
    first, second = ring.take(), ring.take()
    assert first is slots[0] and second is slots[1]
    first.done.record()
    second.done.record()
    with pytest.raises(RuntimeError, match="no step's result was taken"):
        ring.take()
    with pytest.raises(RuntimeError, match="before the device was done"):
        ring.give_back(first)
    with pytest.raises(RuntimeError, match="no step's result was taken"):
        ring.take()
    first.done.has_passed = True
    ring.give_back(first)
    assert ring.take() is first


def test_a_tape_does_what_was_done_with_what_is_there_now() -> None:
    source, out = torch.arange(4.0), torch.zeros(4)

    def act() -> torch.Tensor:
        doubled = source * 2
        out.copy_(doubled)
        return doubled.view(2, 2) + 1

    graph, result = TapedGraph.record(act)
    source.fill_(5.0)
    graph.replay()
    assert out.tolist() == [10.0] * 4 and result.tolist() == [[11.0, 11.0]] * 2


def test_what_was_baked_into_a_tape_comes_out_wrong() -> None:
    lengths = [3]
    out = torch.zeros(5)

    def act() -> None:
        out[: lengths[0]] += 1

    graph, _ = CpuDevice().capture(act)
    lengths[0] = 5
    graph.replay()
    assert out.tolist() == [3.0, 3.0, 3.0, 0.0, 0.0]


@pytest.mark.parametrize("read", [lambda x: x.item(), lambda x: x.nonzero(), lambda x: x[x > 0], lambda x: bool(x)])
def test_a_captured_step_may_not_read_the_device(read: object) -> None:
    assert callable(read)
    with pytest.raises(RuntimeError, match="may not read the device"):
        TapedGraph.record(lambda: read(torch.ones(1)))


def test_blocks_that_follow_one_another_on_both_sides_are_one_copy() -> None:
    def found(sources: list[int], destinations: list[int]) -> list[tuple[int, int, int]]:
        return list(runs(np.array(sources, np.int32), np.array(destinations, np.int32)))

    assert found([], []) == []
    assert found([3, 4, 5], [7, 8, 9]) == [(3, 7, 3)]
    assert found([3, 4, 6, 7], [7, 8, 9, 11]) == [(3, 7, 2), (6, 9, 1), (7, 11, 1)]


HOPPER = Facts((9, 0), (2, 11), has_flash_3=True, has_flash_2=True, has_triton=True)
CHOICES = [
    (HOPPER, "flash3", "flash3"),
    (replace(HOPPER, is_half=False), "triton", "triton"),
    (replace(HOPPER, capability=(8, 0)), "triton", "triton"),
    (replace(HOPPER, capability=(8, 0), block_size=256), "triton", "flash2"),
    (replace(HOPPER, has_flash_3=False), "triton", "triton"),
    (replace(HOPPER, has_flash_3=False, has_flash_2=False, torch_version=(2, 13)), "triton", "triton"),
    (replace(HOPPER, has_flash_3=False, has_flash_2=False, torch_version=(2, 12), block_size=256), "triton", "varlen"),
    (replace(HOPPER, has_flash_3=False, has_flash_2=False, has_triton=False), "gather", "gather"),
    (Facts((9, 0), (2, 12), block_size=256), "gather", "varlen"),
    (replace(HOPPER, capability=(7, 5)), "gather", "gather"),
    (Facts(has_triton=True), "gather", "gather"),
]


@pytest.mark.parametrize(("facts", "decode", "mixed"), CHOICES)
def test_the_best_attention_that_can_run_is_chosen(facts: Facts, decode: str, mixed: str) -> None:
    choice = choose(facts)
    assert (choice.decode, choice.mixed) == (decode, mixed)
    names = ("flash3", "flash2", "varlen", "triton", "gather")
    assert tuple(reason.partition(":")[0] for reason in choice.passed_over) == names[: len(choice.passed_over)]


def test_an_attention_that_is_asked_for_runs_or_says_why_it_cannot() -> None:
    assert choose(HOPPER, "triton").mixed == "triton"
    with pytest.raises(SettingsError, match="varlen cannot run here: this torch pages nothing"):
        choose(HOPPER, "varlen")
