"""Scheduler <-> executor: step plans and their results."""

from enum import IntEnum, IntFlag

from msgspec import Struct

from services.wire.messages.front import ModelCard
from services.wire.messages.requests import Constraint, FailureReason, Sampling

# scheduler -> executor --------------------------------------------------------------------------------------------


class Hello(Struct, frozen=True, array_like=True, gc=False, tag=0):
    """Opens an epoch: plans of any other are dropped from now on. The executor answers Ready{epoch}."""

    epoch: int


class SlotInit(Struct, frozen=True, array_like=True, gc=False, tag=0):
    """A slot begins a generation with an empty block table. known_tokens: only when sampling needs the history.

    constraint: the number of the Prepare that its tokens follow; 0 for none.
    """

    slot: int
    generation: int
    sampling: Sampling
    seed: int
    num_prompt_tokens: int
    known_tokens: bytes = b""  # column: prompt and acknowledged outputs
    constraint: int = 0


class SlotRetire(Struct, frozen=True, array_like=True, gc=False, tag=1):
    slot: int
    generation: int


class AppendBlocks(Struct, frozen=True, array_like=True, gc=False, tag=2):
    """Block ids joining block tables: columns, one entry a block. starts: the index in the slot's table."""

    slots: bytes
    starts: bytes
    blocks: bytes


class CopyDirection(IntEnum):
    WITHIN = 0  # device to device: copy on write
    OUT = 1  # device to host
    IN = 2  # host to device


class CopyBlocks(Struct, frozen=True, array_like=True, gc=False, tag=3):
    """Whole-block copies, reported by `copy` in copies_done when direction is OUT or IN."""

    copy: int
    direction: CopyDirection
    sources: bytes
    destinations: bytes


Op = SlotInit | SlotRetire | AppendBlocks | CopyBlocks


class RowFlag(IntFlag):
    SAMPLE = 1  # the row's last token is sampled from
    FUTURE_INPUT = 2  # the one input is last_token[slot]
    LAST_CHUNK = 4  # the row reaches the end of the known tokens
    MASKED = 8  # structured output: the slot's constraint says which tokens may be drawn
    PROMPT_LOGPROBS = 16


class StepPlan(Struct, frozen=True, array_like=True, gc=False, tag=1):
    """One step: ops in order, then rows, sent as a difference from the step before it in this epoch.

    The rows are those of the last step in their order, minus the dropped (indices into them), each one position on
    with count 1 and flags SAMPLE | FUTURE_INPUT, and MASKED where it was; then the added, whose columns have one entry
    a row. host_tokens holds the inputs of every added row that is not FUTURE_INPUT, concatenated. The first plan of an
    epoch has no last step: its baseline is empty. A plan may hold ops and no rows; the next one's is then empty.
    """

    epoch: int
    step: int
    ops: tuple[Op, ...] = ()
    dropped: bytes = b""
    slots: bytes = b""
    generations: bytes = b""
    positions: bytes = b""
    counts: bytes = b""
    flags: bytes = b""
    host_tokens: bytes = b""


class SetExecutorLog(Struct, frozen=True, array_like=True, gc=False, tag=2):
    """An operator's wish, passed on: the executor logs from this level on."""

    level: str


class Prepare(Struct, frozen=True, array_like=True, gc=False, tag=3):
    """Compile a constraint beside the steps; the answer is Prepared, whenever it is there.

    number: the scheduler's, from 1 on, never used twice. Of no epoch: it outlives a failed step, and ends with a
    Release or with the executor.
    """

    number: int
    constraint: Constraint


class Release(Struct, frozen=True, array_like=True, gc=False, tag=4):
    """No slot will be initialised with this constraint, which was Prepared, any more."""

    number: int


StepMessage = Hello | StepPlan
ConstraintMessage = Prepare | Release
PlanMessage = StepMessage | ConstraintMessage | SetExecutorLog


# executor -> scheduler --------------------------------------------------------------------------------------------


class Ready(Struct, frozen=True, array_like=True, gc=False, tag=0):
    """Sent with epoch 0 when an executor opens, then in answer to each Hello, after every copy has ended.

    instance names the executor's process life. num_blocks counts the dummy block 0. max_rows: most rows of a step,
    and slots are 1 .. max_rows (slot 0 is a dummy).
    """

    epoch: int
    instance: int
    num_blocks: int
    block_size: int
    max_rows: int
    schema_version: int
    card: ModelCard
    num_host_blocks: int = 0


class StepStatus(IntEnum):
    OK = 0
    FAILED = 1  # nothing of the step counts; the epoch is over


class FailedRow(Struct, frozen=True, array_like=True, gc=False):
    row: int
    failure: FailureReason
    detail: str = ""


class Logprobs(Struct, frozen=True, array_like=True, gc=False):
    """Log-softmax of the raw logits. rows and counts: one entry a reported token; the rest are flat.

    A reported token lists counts[i] candidates: first the chosen one, then the top k without it. rank 1 = likeliest.
    """

    rows: bytes  # column: index into the rows of the step, or the deltas of the batch
    counts: bytes  # column
    token_ids: bytes  # column
    ranks: bytes  # column
    values: bytes  # float32 column


class StepResult(Struct, frozen=True, array_like=True, gc=False, tag=1):
    """One for each StepPlan, in order. n_out: column, tokens each row put out; tokens: column, flat, in row order.

    Times are CLOCK_MONOTONIC nanoseconds, which one machine's processes share.
    """

    epoch: int
    step: int
    status: StepStatus
    tokens: bytes = b""
    n_out: bytes = b""
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    failed_rows: tuple[FailedRow, ...] = ()
    copies_done: bytes = b""  # column
    t_received: int = 0
    t_launched: int = 0
    t_done: int = 0
    detail: str = ""


class Prepared(Struct, frozen=True, array_like=True, gc=False, tag=2):
    """A constraint may be used from now on, or `detail` says why it never can."""

    number: int
    detail: str = ""


ResultMessage = Ready | StepResult | Prepared
