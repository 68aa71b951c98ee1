"""What a request is: its identity, what it asks for, and how it may end.

These values ride inside the messages of several links. They are validated once, by the gateway, and re-checked by
nobody behind it. Identity: (gateway, request, incarnation) names one call and is never reused; a sequence adds its
index, 0 <= index < n. `request` is the id the client sees; `incarnation` is minted by the gateway, rising with every
call it makes.
"""

from enum import IntEnum

from msgspec import Struct


class FinishReason(IntEnum):
    """How a sequence ended. FAILED carries a FailureReason."""

    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    FAILED = 4


class FailureReason(IntEnum):
    """Why a sequence ended FAILED or a request was refused; the gateway maps each to one status code."""

    NONE = 0
    QUEUE_FULL = 1  # the waiting queue is at its bound; retry later
    KV_CAPACITY = 2  # can never fit in the KV pool
    CONTEXT_LENGTH = 3  # prompt, or prompt + max_tokens, exceeds the model's context
    DEADLINE = 4  # the deadline passed
    DEADLINE_UNREACHABLE = 5  # the deadline cannot be met
    DUPLICATE = 6  # a live request has this id
    POISONED_ROW = 7  # the row's logits were not finite, or its token was no token
    STEP_FAILED = 8  # every step with this sequence failed
    CONSTRAINT_FAILED = 9  # structured output reached a dead end, or takes more work than is allowed
    ENGINE_DEAD = 10  # a service is gone
    DRAINING = 11  # no new work is taken
    SLOW_READER = 12  # the client stopped reading
    CONSTRAINT_INVALID = 13  # the constraint does not compile, or is larger than is allowed


class Identity(Struct, frozen=True, array_like=True, gc=False):
    """One call: who serves it, the id its client sees, and which use of that id it is."""

    gateway: str
    request: str
    incarnation: int


class SequenceKey(Struct, frozen=True, array_like=True, gc=False):
    """One sequence of a call; index counts the n samples asked for."""

    gateway: str
    request: str
    incarnation: int
    index: int


# What a request asks for -------------------------------------------------------------------------------------------


class ConstraintKind(IntEnum):
    JSON_SCHEMA = 1
    JSON_OBJECT = 2
    REGEX = 3
    CHOICE = 4
    GRAMMAR = 5


class Constraint(Struct, frozen=True, array_like=True, gc=False):
    """Structured output: the kind and its source text (for CHOICE a JSON array of strings)."""

    kind: ConstraintKind
    source: str


class Sampling(Struct, frozen=True, array_like=True, gc=False):
    """How tokens are drawn; validated by the gateway, re-checked by nobody.

    temperature >= 0 (0 = greedy); top_k >= 0 (0 = off); 0 < top_p <= 1; 0 <= min_p <= 1. logprobs and
    prompt_logprobs: None = none, k >= 0 = the chosen token and the top k. min_tokens: stop_token_ids are masked
    until so many tokens are drawn.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    min_tokens: int = 0
    stop_token_ids: bytes = b""  # column
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias_token_ids: bytes = b""  # column
    bias_values: bytes = b""  # float32 column, one for each of bias_token_ids
    allowed_token_ids: bytes = b""  # column; empty = all
    bad_words: tuple[bytes, ...] = ()  # columns of token ids
    constraint: Constraint | None = None
    ignore_eos: bool = False  # with a constraint: the ends of a text are masked while anything else may follow

    @property
    def needs_history(self) -> bool:
        """Whether a draw depends on tokens before it, so that a new slot must be told of them."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1.0, 0.0, 0.0) or bool(self.bad_words) or self.constraint is not None


class Stopping(Struct, frozen=True, array_like=True, gc=False):
    """When a sequence ends. stop_token_ids already holds the model's EOS ids unless the client ignores them.

    max_tokens >= 1, or None for whatever context is left. 0 <= min_tokens <= max_tokens: no stop counts before it.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    stop_token_ids: bytes = b""  # column
    stop_strings: tuple[str, ...] = ()
    include_stop: bool = False


class Output(Struct, frozen=True, array_like=True, gc=False):
    """What the text side is asked for."""

    skip_special_tokens: bool = True
    logprobs: bool = False  # text is wanted for each candidate
