"""The counting device: how long steps take, when copies end, and what a plan's difference means in counts."""

from services.scheduler.virtual.device import LLAMA_8B, DeviceModel, VirtualDevice
from services.wire import columns
from services.wire.messages import CopyBlocks, CopyDirection, Hello, Op, RowFlag, StepPlan

# 1000 ns a step, 10 ns a token, 1 ns a position read, 100 ns a block copied.
PLAIN = DeviceModel(
    name="plain", weight_bytes=1e3, memory_rate=1e9, compute_rate=1e8, link_rate=1e9, kv_bytes=1, block_size=100
)
SAMPLE, FUTURE = RowFlag.SAMPLE, RowFlag.SAMPLE | RowFlag.FUTURE_INPUT


def plan(
    step: int, *added: tuple[int, int, int, int], dropped: tuple[int, ...] = (), ops: tuple[Op, ...] = ()
) -> StepPlan:
    """added: (slot, position, count, flags)."""
    slots, positions, counts, flags = zip(*added, strict=True) if added else ((), (), (), ())
    return StepPlan(
        1,
        step,
        ops,
        columns.pack(dropped),
        columns.pack(slots),
        columns.pack(slots),
        columns.pack(positions),
        columns.pack(counts),
        columns.pack(flags),
    )


def copy(number: int, num_blocks: int) -> CopyBlocks:
    blocks = columns.pack(range(num_blocks))
    return CopyBlocks(number, CopyDirection.OUT, blocks, blocks)


def outcome(device: VirtualDevice) -> tuple[int, int, int, list[int]]:
    """(launched, done, tokens, copies) of the oldest step."""
    result = device.take()
    return result.t_launched, result.t_done, columns.length(result.tokens), list(columns.unpack(result.copies_done))


def test_a_step_takes_its_own_time_and_more_for_tokens_and_positions() -> None:
    device = VirtualDevice(PLAIN)
    device.receive(plan(1, (1, 0, 30, 0), (2, 50, 1, SAMPLE)), now=5)
    assert device.next_end == 5 + 1000 + 10 * 31 + (30 + 51)
    assert outcome(device) == (5, 5 + 1391, 1, [])
    assert device.next_end is None


def test_a_step_waits_for_the_one_before_and_not_for_its_own_plan() -> None:
    device = VirtualDevice(PLAIN)
    device.receive(plan(1, (1, 0, 1, SAMPLE)), now=0)
    device.receive(plan(2), now=10)
    first, second = outcome(device), outcome(device)
    assert first == (0, 1011, 1, [])
    assert second == (1011, 1011 + 1012, 1, []), "the row went on by itself, one position further"
    device.receive(plan(3), now=5000)
    assert outcome(device)[:2] == (5000, 5000 + 1013)


def test_rows_are_a_difference() -> None:
    device = VirtualDevice(PLAIN)
    device.receive(plan(1, (1, 0, 1, SAMPLE), (2, 0, 1, SAMPLE), (3, 0, 1, SAMPLE)), now=0)
    device.receive(plan(2, (4, 6, 4, 0), dropped=(0, 2)), now=0)
    assert outcome(device) == (0, 1000 + 30 + 3, 3, [])
    assert outcome(device)[1:] == (1033 + 1000 + 50 + (2 + 10), 1, [])
    device.receive(plan(3, (4, 10, 1, FUTURE), dropped=(1,)), now=0)
    assert outcome(device)[2] == 2


def test_copies_run_beside_the_steps_in_order_and_are_told_by_the_first_that_ends_after() -> None:
    device = VirtualDevice(PLAIN)
    device.receive(plan(1, (1, 0, 1, SAMPLE)), now=0)
    device.receive(plan(2, ops=(copy(1, 5), copy(2, 15))), now=0)
    device.receive(plan(3), now=0)
    device.receive(plan(4), now=0)
    ends = [outcome(device) for _ in range(4)]
    assert [end[1] for end in ends] == [1011, 2023, 3036, 4050], "no step is longer for a copy"
    # Both may begin when the first step is over: they end at 1511 and 3011.
    assert [end[3] for end in ends] == [[], [1], [2], []]
    assert device.num_copied_blocks == 20


def test_a_step_without_rows_takes_no_time_or_waits_for_a_copy() -> None:
    device = VirtualDevice(PLAIN)
    device.receive(plan(1), now=7)
    assert outcome(device) == (7, 7, 0, [])
    device.receive(plan(2, ops=(copy(1, 5), copy(2, 5))), now=10)
    device.receive(plan(3), now=10)
    assert outcome(device) == (10, 510, 0, [1])
    assert outcome(device) == (510, 1010, 0, [2])


def test_the_default_device_is_one_of_8_billion_parameters() -> None:
    floor = LLAMA_8B.step_ns(1, 0, 0)
    assert 4.8e6 < floor < 5.0e6, "the weights, 16 GB at 3.3 TB/s"
    assert LLAMA_8B.step_ns(1, 20_000, 0) - floor == 1_000_000_000
    assert abs(LLAMA_8B.step_ns(1, 0, 4096) - floor - 4096 * 131_072 / 3.3e12 * 1e9) <= 1
    assert 20e6 < LLAMA_8B.copy_ns(4096 // 16) < 22e6, "512 MiB at 25 GB/s"


def test_steps_vary_within_the_jitter_and_the_same_every_time() -> None:
    model = DeviceModel(
        name="shaky", weight_bytes=1e6, memory_rate=1e9, compute_rate=1e9, link_rate=1e9, kv_bytes=1, jitter=0.1
    )
    times = [model.step_ns(step, 0, 0) for step in range(1000)]
    assert times == [model.step_ns(step, 0, 0) for step in range(1000)]
    assert 0.9e6 <= min(times) < 0.91e6 and 1.09e6 < max(times) <= 1.1e6
    assert abs(sum(times) / 1000 - 1e6) < 1e3


def test_it_introduces_itself() -> None:
    device = VirtualDevice(PLAIN)
    ready = device.hello(Hello(3))
    assert (ready.epoch, ready.num_blocks, ready.block_size) == (3, PLAIN.num_blocks + 1, 100)
    assert ready.num_host_blocks == PLAIN.num_host_blocks and ready.max_rows == PLAIN.max_rows
