"""A device that only counts: how long each step of a stream of plans takes, and when copies end.

Executes StepPlans as a real executor does - in order, one after another, the next one queued while one runs - but
without content: rows are numbers of tokens and positions, every token is 0. A step takes a time of its own (the
weights are read once), so much for each new token (compute) and so much for each KV position read (memory). Copies
run in order beside the steps, over the host link. Knows no requests, no policy and no clock: `now` comes in.
"""

from collections import deque

from msgspec import Struct

from services.wire import columns
from services.wire.messages import (
    SCHEMA_VERSION,
    CopyBlocks,
    CopyDirection,
    Hello,
    ModelCard,
    Ready,
    RowFlag,
    StepPlan,
    StepResult,
    StepStatus,
)

NS_PER_S = 1_000_000_000
INSTANCE = 1


class DeviceModel(Struct, frozen=True, kw_only=True):
    """A model on a device, as numbers. Rates are per second; sizes in bytes, positions and blocks."""

    name: str
    weight_bytes: float
    memory_rate: float  # bytes: of weights and KV
    compute_rate: float  # tokens
    link_rate: float  # bytes: between device and host
    kv_bytes: int  # of one position
    block_size: int = 16
    num_blocks: int = 26_000  # usable ones
    num_host_blocks: int = 16_000
    max_rows: int = 512
    context_length: int = 131_072
    jitter: float = 0.0  # steps take up to this share longer or shorter than the numbers say

    def step_ns(self, step: int, num_tokens: int, num_positions: int) -> int:
        """The step of this number, of so many new tokens, that reads so many KV positions."""
        num_bytes = self.weight_bytes + num_positions * self.kv_bytes
        steady_ns = NS_PER_S * (num_bytes / self.memory_rate + num_tokens / self.compute_rate)
        return round(steady_ns * (1 + self.jitter * _wobble(step)))

    def copy_ns(self, num_blocks: int) -> int:
        """Moving so many blocks over the link, one way."""
        return round(NS_PER_S * num_blocks * self.block_size * self.kv_bytes / self.link_rate)


# A model of 8 billion parameters in bf16 with grouped KV heads (2 x 32 layers x 8 heads x 128 x 2 bytes a position), on
# an accelerator of 80 GB: 4.8 ms for the weights, 50 us a token, 0.04 us a position, 84 us a block over PCIe.
LLAMA_8B = DeviceModel(
    name="llama-8b",
    weight_bytes=16e9,
    memory_rate=3.3e12,
    compute_rate=20e3,
    link_rate=25e9,
    kv_bytes=131_072,
)


class VirtualDevice:
    """Plans go in with `receive`; their results come out with `take`, the oldest first, at `next_end`."""

    def __init__(self, model: DeviceModel) -> None:
        self.model = model
        self.num_copied_blocks = 0
        self._results: deque[StepResult] = deque()
        self._free_at = 0  # when the last step received is over
        self._link_free_at = 0
        self._copies: deque[tuple[int, int]] = deque()  # (end, number) of those no result has named
        self._slots: list[int] = []  # of the last step's rows, in their order
        self._positions: list[int] = []  # of the next token of each
        self._carries: list[bool] = []  # whether each sampled, and so may go on by itself

    def ready(self, epoch: int) -> Ready:
        model = self.model
        card = ModelCard(model.name, 2, model.context_length, (), "virtual", kv_bytes_per_token=model.kv_bytes)
        sizes = (model.num_blocks + 1, model.block_size, model.max_rows, SCHEMA_VERSION)
        return Ready(epoch, INSTANCE, *sizes, card, num_host_blocks=model.num_host_blocks)

    def hello(self, hello: Hello) -> Ready:
        """Answer the Hello that opens the one epoch there is."""
        return self.ready(hello.epoch)

    @property
    def next_end(self) -> int | None:
        """When the oldest step is over; None when there is none."""
        return self._results[0].t_done if self._results else None

    def receive(self, plan: StepPlan, now: int) -> None:
        """Queue a plan. All that decides its times is known: plans and copies run in order, and nothing fails."""
        begin = max(now, self._free_at)
        for op in plan.ops:
            if isinstance(op, CopyBlocks) and op.direction != CopyDirection.WITHIN:  # which takes next to no time
                self._copy(op, begin)
        num_tokens = self._move_rows(plan)
        if self._slots:
            end = begin + self.model.step_ns(plan.step, num_tokens, sum(self._positions))
        else:
            end = max(begin, self._copies[0][0]) if self._copies else begin  # it waits for a copy
        self._free_at = end
        self._results.append(
            StepResult(
                plan.epoch,
                plan.step,
                StepStatus.OK,
                tokens=bytes(4 * sum(self._carries)),
                n_out=columns.pack(self._carries),
                copies_done=columns.pack(self._copies_until(end)),
                t_received=now,
                t_launched=begin,
                t_done=end,
            )
        )

    def take(self) -> StepResult:
        """The oldest step's result."""
        return self._results.popleft()

    def _copy(self, copy: CopyBlocks, begin: int) -> None:
        num_blocks = columns.length(copy.sources)
        self._link_free_at = max(self._link_free_at, begin) + self.model.copy_ns(num_blocks)
        self._copies.append((self._link_free_at, copy.copy))
        self.num_copied_blocks += num_blocks

    def _copies_until(self, end: int) -> list[int]:
        done: list[int] = []
        while self._copies and self._copies[0][0] <= end:
            done.append(self._copies.popleft()[1])
        return done

    def _move_rows(self, plan: StepPlan) -> int:
        """Apply the difference; the new tokens of the step. Afterwards a row has read all positions before its next."""
        dropped = columns.unpack(plan.dropped)
        for index in reversed(dropped):
            del self._slots[index], self._positions[index], self._carries[index]
        assert all(self._carries), "a row goes on that never sampled"
        num_carried = len(self._slots)
        self._positions = [position + 1 for position in self._positions]
        added = [columns.unpack(column) for column in (plan.slots, plan.positions, plan.counts, plan.flags)]
        for slot, position, count, flags in zip(*added, strict=True):
            self._slots.append(slot)
            self._positions.append(position + count)
            self._carries.append(bool(flags & RowFlag.SAMPLE))
        return num_carried + sum(added[2])


def _wobble(step: int) -> float:
    """A number in [-1, 1) that looks drawn and is the same for the same step (a Weyl sequence of the golden ratio)."""
    return (step * 0x9E3779B97F4A7C15 % 2**64) / 2**63 - 1
