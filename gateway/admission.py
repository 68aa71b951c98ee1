"""Admission: a request becomes a Submit or an error, once; nothing behind it checks again.

`terms` reads every knob before the prompt is tokenized, `submit` adds the prompt and holds it against the model's
context. This is the one way from a public request to the wire: another front than ours fills a GenerateRequest or a
ChatRequest and comes through here. Defaults are documented in proto/tandem/v1. Pure: knows the model card, how words
are spelled in tokens and the gateway's bounds; knows no call, no link, no clock. Invariant: a Submit made here
satisfies every range that services/wire/messages states.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gateway.constraints import FIELDS
from gateway.errors import CallError, Violation, invalid
from gateway.fields import ANY_COUNT, AT_LEAST_ONE, Fields, between, refuse_if_any, shown
from gateway.sampling import SamplingRules, Spelling
from gateway.stopping import StoppingRules
from gateway.tools import NO_TOOLS, Tools, read_tools
from services.runtime.settings import GatewaySettings
from services.wire import columns
from services.wire.messages import Constraint, ConstraintKind, Identity, ModelCard, Output, Sampling, Stopping, Submit
from tandem.v1 import chat_pb2, inference_pb2
from tandem.v1 import errors_pb2 as reasons

Request = inference_pb2.GenerateRequest | chat_pb2.ChatRequest

# Seeds made here stay exact in clients whose numbers are doubles.
SEED_BITS = 53


@dataclass(frozen=True)
class Shown:
    """What the reply shows beside the text. num_logprobs, num_prompt_logprobs: None = none."""

    token_ids: bool = False
    prompt: bool = False  # echo
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None


@dataclass(frozen=True)
class MessageBounds:
    """What one message of a stream may hold, and for how long; None = as the server likes."""

    max_tokens: int | None = None
    max_delay_s: float | None = None


@dataclass(frozen=True)
class Terms:
    """All that a request asks for beside its prompt, validated."""

    request_id: str
    sampling: Sampling
    stopping: Stopping
    output: Output
    seed: int
    n: int
    priority: int
    tenant: str
    cache_salt: str
    shown: Shown
    stop_texts: Mapping[int, str]  # stop texts that are special tokens, by the id they became
    tools: Tools
    max_prompt_tokens: int | None  # how many of the prompt's last tokens are kept; None = all
    timeout_s: float | None  # from the call's arrival
    message_bounds: MessageBounds = MessageBounds()

    @property
    def joins_prompt_logprobs(self) -> bool:
        """Whether every sequence begins with the log-probabilities of the prompt."""
        return self.shown.prompt and self.shown.num_logprobs is not None

    @property
    def constraint_field(self) -> str:
        """Where the constraint stands, if there is one."""
        constraint = self.sampling.constraint
        return "tools" if constraint is None or self.tools.schema is not None else f"sampling.{FIELDS[constraint.kind]}"


class Admission:
    """The rules of one served model."""

    def __init__(
        self,
        card: ModelCard,
        spelling: Spelling,
        settings: GatewaySettings,
        mint_seed: Callable[[], int] = lambda: secrets.randbits(SEED_BITS),
    ) -> None:
        self._card = card
        self._settings = settings
        self._mint_seed = mint_seed
        self._sampling = SamplingRules(card, spelling, settings)
        self._stopping = StoppingRules(card, spelling.special_id, settings)
        self._num_logprobs = between(0, min(settings.max_logprobs, card.vocab_size))

    def check_model(self, name: str) -> None:
        """Raise MODEL_NOT_FOUND unless the name is empty or the served model's."""
        if name and name != self._card.name:
            raise CallError(
                reasons.ERROR_REASON_MODEL_NOT_FOUND,
                f"no model {shown(name)} is served here; there is {shown(self._card.name)}",
                metadata={"model": self._card.name},
            )

    def terms(self, request: Request) -> Terms:
        """Every knob of a request; raises CallError naming each field that is wrong."""
        self.check_model(request.model)
        violations: list[Violation] = []
        call = Fields(request, "", violations)
        knobs = Fields(request.sampling, "sampling", violations)
        answer = Fields(request.output, "output", violations)
        stopping, stop_texts = self._stopping.read(request.stopping, violations)
        seed = knobs.integer("seed", ANY_COUNT)
        looks = self._shown(request, answer)
        tools = (
            read_tools(request, violations, self._settings) if isinstance(request, chat_pb2.ChatRequest) else NO_TOOLS
        )
        sampling = self._sampling.read(request.sampling, stopping, violations)
        if tools.specs and sampling.constraint is not None:
            name = request.sampling.WhichOneof("constraint")
            knobs.wrong(str(name), "must not be set beside tools, unless tool_choice is TOOL_MODE_NONE")
        timeout_ms = call.integer("timeout_ms", AT_LEAST_ONE)
        terms = Terms(
            request_id=self._request_id(request.request_id, call),
            sampling=_completed(sampling, looks, tools, request.stopping.ignore_eos),
            stopping=stopping,
            output=Output(
                skip_special_tokens=answer.flag("skip_special_tokens", True), logprobs=looks.num_logprobs is not None
            ),
            seed=self._mint_seed() if seed is None else seed,
            n=self._sampling.num_sequences(knobs),
            priority=request.priority,
            tenant=call.string("tenant", self._settings.max_tenant_chars),
            cache_salt=call.string("cache_salt", self._settings.max_cache_salt_chars),
            shown=looks,
            stop_texts=stop_texts,
            tools=tools,
            max_prompt_tokens=call.integer("truncate_prompt_tokens", AT_LEAST_ONE),
            timeout_s=None if timeout_ms is None else timeout_ms / 1000,
            message_bounds=_message_bounds(answer),
        )
        refuse_if_any(violations)
        return terms

    def submit(
        self, terms: Terms, identity: Identity, prompt_tokens: Sequence[int], remaining_ms: int | None
    ) -> Submit:
        """The Submit of a call; raises CallError when prompt and terms exceed the model's context."""
        self._check_context(terms.stopping, len(prompt_tokens))
        return Submit(
            identity=identity,
            prompt_tokens=columns.pack(prompt_tokens),
            sampling=terms.sampling,
            stopping=terms.stopping,
            output=terms.output,
            seed=terms.seed,
            n=terms.n,
            priority=terms.priority,
            tenant=terms.tenant,
            remaining_ms=remaining_ms,
            cache_salt=terms.cache_salt,
        )

    def _check_context(self, stopping: Stopping, num_prompt_tokens: int) -> None:
        context = self._card.context_length
        check_context(num_prompt_tokens, context)
        left = context - num_prompt_tokens
        if stopping.max_tokens is not None and stopping.max_tokens > left:
            message = (
                f"{num_prompt_tokens} prompt tokens + max_tokens {stopping.max_tokens} exceed the context, {context}"
            )
            raise context_exceeded(message, context, num_prompt_tokens + stopping.max_tokens)
        most = left if stopping.max_tokens is None else stopping.max_tokens
        if stopping.min_tokens > most:
            description = f"must be <= {most}, the most that can be put out, is {stopping.min_tokens}"
            raise invalid([Violation("stopping.min_tokens", description)])

    def _shown(self, request: Request, fields: Fields) -> Shown:
        echoes = fields.flag("echo", False)
        if echoes and isinstance(request, chat_pb2.ChatRequest):
            fields.wrong("echo", "must be false for a conversation; it is for raw prompts")
        return Shown(
            token_ids=fields.flag("return_token_ids", False),
            prompt=echoes,
            num_logprobs=fields.integer("logprobs", self._num_logprobs),
            num_prompt_logprobs=fields.integer("prompt_logprobs", self._num_logprobs),
        )

    def _request_id(self, request_id: str, fields: Fields) -> str:
        # It travels in metadata, which holds printable ASCII alone.
        if request_id and not (request_id.isascii() and request_id.isprintable() and " " not in request_id):
            fields.wrong("request_id", f"must be printable ASCII without spaces, is {shown(request_id)}")
        return fields.string("request_id", self._settings.max_request_id_chars)


def _completed(sampling: Sampling, looks: Shown, tools: Tools, ignores_eos: bool) -> Sampling:
    """With what other parts of the request ask of the sampler. An echo shows the prompt's log-probabilities like the
    output's; calls that are required are a constraint."""
    asked = (looks.num_prompt_logprobs, looks.num_logprobs if looks.prompt else None)
    return msgspec.structs.replace(
        sampling,
        logprobs=looks.num_logprobs,
        prompt_logprobs=max((k for k in asked if k is not None), default=None),
        constraint=sampling.constraint
        if tools.schema is None
        else Constraint(ConstraintKind.JSON_SCHEMA, tools.schema),
        ignore_eos=ignores_eos,
    )


def _message_bounds(answer: Fields) -> MessageBounds:
    delay_ms = answer.integer("max_delay_ms", ANY_COUNT)
    return MessageBounds(
        max_tokens=answer.integer("max_tokens_per_message", AT_LEAST_ONE),
        max_delay_s=None if delay_ms is None else delay_ms / 1000,
    )


def check_context(num_prompt_tokens: int, context_length: int) -> None:
    """Raise CONTEXT_LENGTH_EXCEEDED unless the prompt leaves room for one token."""
    if num_prompt_tokens >= context_length:
        raise context_exceeded(
            f"{num_prompt_tokens} prompt tokens leave no room in the context of {context_length}",
            context_length,
            num_prompt_tokens,
        )


def context_exceeded(message: str, limit: int, given: int) -> CallError:
    """The error for what does not fit the model's context; both sizes in tokens."""
    return CallError(
        reasons.ERROR_REASON_CONTEXT_LENGTH_EXCEEDED, message, metadata={"limit": str(limit), "given": str(given)}
    )
