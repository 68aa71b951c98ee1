"""Gateway <-> scheduler: calls, orders, and the state of the engine."""

from enum import IntEnum

from msgspec import Struct

from services.wire.messages.requests import FailureReason, Identity, Output, Sampling, Stopping

# gateway -> scheduler ---------------------------------------------------------------------------------------------


class Submit(Struct, frozen=True, array_like=True, gc=False, tag=0):
    """One validated call of n sequences. remaining_ms: time left to its deadline when sent, None for none."""

    identity: Identity
    prompt_tokens: bytes  # column, at least one
    sampling: Sampling
    stopping: Stopping
    output: Output
    seed: int = 0  # 0 .. 2**64 - 1
    n: int = 1
    priority: int = 0  # higher is served first
    tenant: str = ""
    remaining_ms: int | None = None
    cache_salt: str = ""
    traceparent: str = ""


class Cancel(Struct, frozen=True, array_like=True, gc=False, tag=1):
    """End every sequence of one call; unknown or ended calls are no error."""

    identity: Identity


class ControlVerb(IntEnum):
    LOAD = 1  # answer with Load now
    DRAIN = 2  # take no new work, finish what is here
    PAUSE = 3
    RESUME = 4
    FLUSH_CACHE = 5
    CANCEL_ALL = 6
    LOG_LEVEL = 7  # argument: the level, then the services it is for (none: all of them), separated by spaces


class Control(Struct, frozen=True, array_like=True, gc=False, tag=2):
    """An operator's order; `number` is the gateway's, echoed in the reply."""

    gateway: str
    number: int
    verb: ControlVerb
    argument: str = ""


SubmitMessage = Submit | Cancel | Control


# scheduler -> gateway ---------------------------------------------------------------------------------------------


class ModelCard(Struct, frozen=True, array_like=True, gc=False):
    """What the executor serves. Sizes in tokens, bytes and counts."""

    name: str
    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    backend: str = ""
    dtype: str = ""
    num_parameters: int = 0
    kv_bytes_per_token: int = 0


class EngineReady(Struct, frozen=True, array_like=True, gc=False, tag=0):
    """The executor has answered; num_blocks counts the usable ones (block 0 is a dummy and left out)."""

    card: ModelCard
    num_blocks: int
    block_size: int
    max_num_seqs: int


class Refused(Struct, frozen=True, array_like=True, gc=False, tag=1):
    """A call that must never open, since another live one has its id; every other refusal is open + close."""

    identity: Identity
    failure: FailureReason
    detail: str


class Load(Struct, frozen=True, array_like=True, gc=False, tag=2):
    """The state of the engine, once a second and on demand. drain_rate: requests ended per second, measured.

    Beside what is so now, totals since the scheduler started; time_ns is its CLOCK_MONOTONIC, so that two of these give
    a rate. step_tokens and step_times count steps by their size in tokens and by their time on the device: entry i
    those of at most 2**i tokens or 2**i x 100 microseconds and more than entry i - 1 holds, the last one all others.
    """

    num_waiting: int
    num_running: int
    num_free_blocks: int
    num_blocks: int
    drain_rate: float
    num_preemptions: int = 0
    num_steps: int = 0
    num_wasted_rows: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_looked_up_tokens: int = 0  # known tokens of sequences looked up in the prefix cache
    num_cached_tokens: int = 0  # of those, the ones that were found
    num_swapped: int = 0  # sequences whose KV lies in host memory
    num_epochs: int = 0  # the first executor opens one, and every failed step and every other executor one more
    num_step_tokens: int = 0
    step_time_us: int = 0
    step_tokens: tuple[int, ...] = ()
    step_times: tuple[int, ...] = ()
    time_ns: int = 0
    is_paused: bool = False
    is_draining: bool = False


class Draining(Struct, frozen=True, array_like=True, gc=False, tag=3):
    """No new work is taken any more."""


class ControlReply(Struct, frozen=True, array_like=True, gc=False, tag=4):
    """The answer to one Control. num_affected: blocks given up by FLUSH_CACHE, calls ended by CANCEL_ALL."""

    number: int
    is_done: bool
    detail: str = ""
    num_affected: int = 0


class EngineDead(Struct, frozen=True, array_like=True, gc=False, tag=5):
    """A service behind the scheduler is gone; every open call is over."""

    detail: str


StatusMessage = EngineReady | Refused | Load | Draining | ControlReply | EngineDead
