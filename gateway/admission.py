"""Admission: a request becomes a Submit or an error, once; nothing behind it checks again.

`terms` reads every knob before the prompt is tokenized, `submit` adds the prompt and holds it against the model's
context. Defaults live here and are documented in proto/tandem/v1. Pure: knows the model card, the tokenizer's special
tokens and the gateway's bounds; knows no call, no link, no clock. Invariant: a Submit made here satisfies every range
that services/wire/messages states.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.errors import CallError, Violation, invalid
from gateway.fields import (
    ABOVE_ZERO_TO_ONE,
    ANY_COUNT,
    AT_LEAST_ONE,
    ZERO_TO_ONE,
    Fields,
    Range,
    between,
    refuse_if_any,
    shown,
)
from services.runtime.settings import GatewaySettings
from services.wire import columns
from services.wire.messages import Identity, ModelCard, Output, Sampling, Stopping, Submit
from tandem.v1 import chat_pb2, common_pb2, inference_pb2
from tandem.v1 import errors_pb2 as reasons

Request = inference_pb2.GenerateRequest | chat_pb2.ChatRequest

# The sampler computes in float32: what it cannot hold is out of range, what it cannot divide by is greedy's own limit.
MAX_FLOAT32 = 3.4028234663852886e38
MIN_NORMAL_FLOAT32 = 1.1754943508222875e-38
TEMPERATURE = Range(0.0, MAX_FLOAT32, f">= 0 and <= {MAX_FLOAT32:.4g}")
DEFAULT_TEMPERATURE = 1.0
TOP_K = Range(-1, math.inf, ">= -1")
# Seeds made here stay exact in clients whose numbers are doubles.
SEED_BITS = 53


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
    returns_token_ids: bool
    stop_texts: Mapping[int, str]  # stop texts that are special tokens, by the id they became


class Admission:
    """The rules of one served model."""

    def __init__(
        self,
        card: ModelCard,
        special_id: Callable[[str], int | None],
        settings: GatewaySettings,
        mint_seed: Callable[[], int] = lambda: secrets.randbits(SEED_BITS),
    ) -> None:
        self._card = card
        self._special_id = special_id
        self._settings = settings
        self._mint_seed = mint_seed
        self._num_sequences = between(1, settings.max_n)
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
        sampling = Fields(request.sampling, "sampling", violations)
        seed = sampling.integer("seed", ANY_COUNT)
        stopping, stop_texts = self._stopping(request.stopping, violations)
        answer = Fields(request.output, "output", violations)
        num_logprobs = answer.integer("logprobs", self._num_logprobs)
        terms = Terms(
            request_id=self._request_id(request.request_id, call),
            sampling=self._sampling(sampling, stopping, num_logprobs),
            stopping=stopping,
            output=Output(
                skip_special_tokens=answer.flag("skip_special_tokens", True), logprobs=num_logprobs is not None
            ),
            seed=self._mint_seed() if seed is None else seed,
            n=sampling.integer("n", self._num_sequences) or 1,
            priority=request.priority,
            tenant=call.string("tenant", self._settings.max_tenant_chars),
            returns_token_ids=answer.flag("return_token_ids", False),
            stop_texts=stop_texts,
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

    def _sampling(self, fields: Fields, stopping: Stopping, num_logprobs: int | None) -> Sampling:
        temperature = fields.real("temperature", DEFAULT_TEMPERATURE, TEMPERATURE)
        top_k = fields.integer("top_k", TOP_K) or 0
        return Sampling(
            temperature=temperature if temperature >= MIN_NORMAL_FLOAT32 else 0.0,
            top_k=top_k if 0 < top_k < self._card.vocab_size else 0,
            top_p=fields.real("top_p", 1.0, ABOVE_ZERO_TO_ONE),
            min_p=fields.real("min_p", 0.0, ZERO_TO_ONE),
            logprobs=num_logprobs,
            min_tokens=stopping.min_tokens,
            stop_token_ids=stopping.stop_token_ids if stopping.min_tokens else columns.EMPTY,
        )

    def _stopping(
        self, message: common_pb2.Stopping, violations: list[Violation]
    ) -> tuple[Stopping, Mapping[int, str]]:
        fields = Fields(message, "stopping", violations)
        max_tokens = fields.integer("max_tokens", AT_LEAST_ONE)
        min_tokens = fields.integer("min_tokens", ANY_COUNT) or 0
        if max_tokens is not None and min_tokens > max_tokens:
            fields.wrong("min_tokens", f"must be <= max_tokens, is {min_tokens} > {max_tokens}")
        stop_ids: list[int] = []
        if fields.count("stop_token_ids", self._settings.max_stop_token_ids):
            stop_ids = fields.token_ids("stop_token_ids", self._card.vocab_size)
        strings, stop_texts = self._stop_strings(message.stop, fields)
        end_ids = () if fields.flag("ignore_eos", False) else self._card.eos_token_ids
        stopping = Stopping(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_token_ids=columns.pack(sorted({*stop_ids, *stop_texts, *end_ids})),
            stop_strings=strings,
            include_stop=fields.flag("include_stop", False),
        )
        return stopping, stop_texts

    def _stop_strings(self, stops: Sequence[str], fields: Fields) -> tuple[tuple[str, ...], Mapping[int, str]]:
        """Stop texts, and which of them are special tokens, by id. A special one is matched both ways: by its id, since
        its text may be skipped, and as text, so that it is cut from a text that shows it."""
        if not fields.count("stop", self._settings.max_stop_strings):
            return (), {}
        strings: dict[str, None] = {}
        special: dict[int, str] = {}
        for index, stop in enumerate(stops):
            if not 0 < len(stop) <= self._settings.max_stop_string_chars:
                bound = between(1, self._settings.max_stop_string_chars).text
                fields.wrong(f"stop[{index}]", f"must have {bound} characters, has {len(stop)}")
                return (), {}
            strings[stop] = None
            token_id = self._special_id(stop)
            if token_id is not None:
                special[token_id] = stop
        return tuple(strings), special

    def _request_id(self, request_id: str, fields: Fields) -> str:
        # It travels in metadata, which holds printable ASCII alone.
        if request_id and not (request_id.isascii() and request_id.isprintable() and " " not in request_id):
            fields.wrong("request_id", f"must be printable ASCII without spaces, is {shown(request_id)}")
        return fields.string("request_id", self._settings.max_request_id_chars)


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
