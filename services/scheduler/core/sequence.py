"""The scheduler's records: a Request (one call), its Sequences (one a sample), and a Run (a sequence's stay on a slot).

A Sequence holds the truth that survives everything: its known tokens. A Run holds what is true only while the sequence
is on the executor: slot, generation, block table and the counters P (planned) and C (confirmed). Preemption ends the
Run and keeps the Sequence, so no counter is ever reset while a step that names it is in flight: an acknowledgement
names the Run, and a Run that has ended changes nothing but the known tokens.

Counters (positions): L = len(sequence.tokens); P = run.planned; C = run.confirmed; A = len(run.blocks) x block_size.
A carried run's P rises by one with every step, whoever looks: it is kept as a distance from the step's number.
F, the tokens sampled and not acknowledged, is derived: a row samples exactly when it reaches L + F, so either P < L
and nothing is in flight, or P == L + F - 1. Hence F = max(0, P + 1 - L). An ended Run leaves its F to the sequence
as `late`.
"""

from array import array

from services.wire.messages import (
    Constraint,
    CopyDirection,
    FinishReason,
    Identity,
    Output,
    Sampling,
    SequenceKey,
    Stopping,
)


class Tenant:
    """Whom requests belong to. served: its virtual token counter, see tenant.py. num_carried: its carried rows."""

    __slots__ = ("name", "num_carried", "num_open", "served")

    def __init__(self, name: str) -> None:
        self.name = name
        self.served = 0
        self.num_open = 0
        self.num_carried = 0


class Request:
    """One call. `num_open` counts its sequences that have not ended."""

    __slots__ = ("deadline", "identity", "num_open", "sequences")

    def __init__(self, identity: Identity, deadline: int | None) -> None:
        self.identity = identity
        self.deadline = deadline  # clock of the shell, nanoseconds
        self.sequences: list[Sequence] = []
        self.num_open = 0


class Sequence:
    """One sample of a request. `limit`: the number of known tokens at which it ends with LENGTH."""

    __slots__ = (
        "arrival",
        "blame",
        "cache_root",
        "chain",
        "constraint",
        "finish",
        "key",
        "late",
        "limit",
        "min_length",
        "needs_history",
        "num_cached_tokens",
        "num_charged_tokens",
        "num_prompt_tokens",
        "num_scored",
        "output",
        "priority",
        "request",
        "run",
        "sampling",
        "seed",
        "stop_token_ids",
        "stopping",
        "swapped",
        "t_first_planned",
        "t_first_token",
        "t_submitted",
        "tenant",
        "tokens",
    )

    def __init__(
        self, request: Request, key: SequenceKey, tokens: "array[int]", asks: tuple[Sampling, Stopping, Output]
    ) -> None:
        self.request = request
        self.key = key
        self.tokens = tokens
        self.num_prompt_tokens = len(tokens)
        self.sampling, self.stopping, self.output = asks
        self.constraint: Constraint | None = None  # what its output must be; see constraints.py
        self.needs_history = self.sampling.needs_history  # a new slot must be told of all known tokens
        # Prompt tokens whose log-probabilities are told, or not wanted; the first has none.
        self.num_scored = len(tokens) if self.sampling.prompt_logprobs is None else 1
        self.stop_token_ids: frozenset[int] = frozenset()
        self.min_length = 0  # known tokens below which no stop token counts
        self.limit = 0
        self.seed = 0
        self.cache_root = b""  # parent of its first block's key
        self.chain: list[bytes] = []  # keys of its full blocks of known tokens, as far as they were needed
        self.num_cached_tokens = 0  # of its prompt, found in the prefix cache when it was first admitted
        self.num_charged_tokens = 0  # of its prompt, to its tenant
        self.priority = 0
        self.tenant = Tenant("")
        self.arrival = 0
        self.run: Run | None = None
        self.swapped: Swapped | None = None
        self.late = 0  # tokens in flight from runs that have ended
        self.blame = 0  # failed steps in a row that held it
        self.finish: FinishReason | None = None
        self.t_submitted = 0
        self.t_first_planned = 0
        self.t_first_token = 0

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def is_scored(self) -> bool:
        """Whether nothing is left to be told of the prompt."""
        return self.num_scored >= self.num_prompt_tokens


class Copy:
    """A copy ordered and not reported: its blocks on both sides belong to it. step: the one that orders it, whose
    launch is t_begun (nanoseconds).

    Out: `swapped` is what will be there, and `sequence` whose it is. In: `run` waits for it. All None once the sequence
    has ended.
    """

    __slots__ = ("device_blocks", "direction", "host_blocks", "number", "run", "sequence", "step", "swapped", "t_begun")

    def __init__(self, number: int, direction: CopyDirection, device_blocks: list[int], host_blocks: list[int]) -> None:
        self.number = number
        self.direction = direction
        self.device_blocks = device_blocks
        self.host_blocks = host_blocks
        self.step = 0
        self.t_begun = 0
        self.sequence: Sequence | None = None
        self.swapped: Swapped | None = None
        self.run: Run | None = None


class Swapped:
    """KV of a waiting sequence in host memory: its first num_positions. is_there: the copy out has been reported."""

    __slots__ = ("copy", "host_blocks", "is_there", "num_positions")

    def __init__(self, host_blocks: list[int], num_positions: int, is_there: bool) -> None:
        self.host_blocks = host_blocks
        self.num_positions = num_positions
        self.is_there = is_there
        self.copy: Copy | None = None


class Steps:
    """Steps are numbered from 1 on, in one row over all epochs; `last` is the one planned last."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0


class Run:
    """A stay of a sequence on a slot.

    is_live: it holds its slot and blocks. is_carried: it sampled in the last planned step and goes on in the next as
    one future row. is_ending: its last row is planned, so it takes none of any later step. `due`: the planned position
    at which it needs attention, a block or the end. settled: C until a token that this run sampled is acknowledged
    (has_told); from then on all known tokens but the last are confirmed, and nobody need count.
    """

    __slots__ = (
        "_origin",
        "_steps",
        "blocks",
        "copy",
        "due",
        "generation",
        "has_told",
        "is_carried",
        "is_ending",
        "is_live",
        "is_tainted",
        "key",
        "last_planned_step",
        "last_sampled_step",
        "num_cached_blocks",
        "num_expected",
        "num_published",
        "sequence",
        "settled",
        "slot",
        "stop_token_ids",
        "tokens",
    )

    def __init__(self, sequence: Sequence, slot: int, generation: int, steps: Steps) -> None:
        self.sequence = sequence
        self.key = sequence.key
        self.tokens = sequence.tokens  # the sequence's own; the pass over sampled rows reads them here
        self.stop_token_ids = sequence.stop_token_ids
        self.slot = slot
        self.generation = generation
        self.blocks: list[int] = []
        self._steps = steps
        self._origin = 0  # P, or of a carried run its distance from the last step's number
        self.settled = 0
        self.has_told = False
        self.due = 0
        self.copy: Copy | None = None  # a copy in that has not been reported; the run is not planned before
        self.is_live = True
        self.is_carried = False
        self.is_ending = False
        self.is_tainted = False  # its KV must not be found by others
        self.last_sampled_step = 0  # 0: this generation has not sampled
        self.last_planned_step = 0  # of rows that were not carried
        self.num_cached_blocks = 0  # blocks it found, at the head of its table
        self.num_published = 0  # blocks whose publication is settled, the found ones included
        self.num_expected = 0  # blocks that are computed or being computed

    @property
    def planned(self) -> int:
        """P: positions planned."""
        return self._origin + self._steps.last if self.is_carried else self._origin

    @planned.setter
    def planned(self, position: int) -> None:
        assert not self.is_carried, "a carried run goes on by itself"
        self._origin = position

    @property
    def due_step(self) -> int:
        """The step that takes a carried run to the position at which it is due."""
        return self.due - self._origin

    def go_on(self) -> int:
        """From now on every step takes the run one position on. Returns the step that takes it to where it is due."""
        self._origin -= self._steps.last
        self.is_carried = True
        return self.due - self._origin

    def halt(self) -> None:
        """No step to come takes the run on."""
        self._origin += self._steps.last
        self.is_carried = False

    @property
    def confirmed(self) -> int:
        """C: positions confirmed, while the run is live."""
        return len(self.tokens) - 1 if self.has_told else self.settled

    @property
    def num_in_flight(self) -> int:
        """F: tokens sampled by this run and not acknowledged."""
        return max(0, self.planned + 1 - len(self.tokens))

    @property
    def num_wanted(self) -> int:
        """Tokens between P and L + F: what is left to plan, at least one."""
        return max(1, len(self.tokens) - self.planned)

    @property
    def is_exhausted(self) -> bool:
        """L + F has reached the limit: nothing more is planned, the end comes with an acknowledgement."""
        return self.planned + 1 >= self.sequence.limit
