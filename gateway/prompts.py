"""Prompts: what a client wrote becomes token ids, without holding up its neighbours.

Short texts are tokenized where they are; long ones on a thread of their own (tokenizing releases the GIL). A text that
cannot fit the model's context is refused by its size, untokenized, unless it is to be truncated. Knows the tokenizer,
the context and the gateway's bounds; knows no call, no link and no gRPC.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from gateway.admission import Terms, check_context, context_exceeded
from gateway.conversations import check_messages, for_template, said
from gateway.errors import CallError, Violation, invalid
from gateway.fields import Fields, refuse_if_any
from services.runtime.settings import GatewaySettings
from services.tokenizer import TemplateError, TextError, Tokenizer
from services.wire.messages import ModelCard
from tandem.v1 import chat_pb2, inference_pb2
from tandem.v1 import errors_pb2 as reasons

R = TypeVar("R")

# A text of this size takes about a millisecond, which is what handing it to a thread is worth.
INLINE_BYTES = 4096


@dataclass(frozen=True)
class Prompt:
    """What a call begins with, at least one token. text: of these tokens, when the reply is to echo it."""

    tokens: Sequence[int]
    text: str = ""


class Prompts:
    """Tokenization for one served model."""

    def __init__(self, tokenizer: Tokenizer, card: ModelCard, settings: GatewaySettings, threads: Executor) -> None:
        self._tokenizer = tokenizer
        self._context_length = card.context_length
        self._vocab_size = card.vocab_size
        self._settings = settings
        self._threads = threads
        self._num_waiting = 0

    async def of_generate(self, request: inference_pb2.GenerateRequest, terms: Terms) -> Prompt:
        """The prompt of a raw request; raises CallError naming the field."""
        if request.WhichOneof("prompt") == "token_ids":
            return self._kept("token_ids.ids", self._given(request.token_ids.ids, request, terms), terms)
        if request.WhichOneof("prompt") is None:
            raise invalid([Violation("prompt", "must be given, as text or token_ids")])
        text = request.text
        size = self._check_size("text", text, terms)
        tokens = await self._off_loop("text", size, lambda: self._tokenizer.encode_prompt(text))
        return self._kept("text", tokens, terms)

    async def of_chat(self, request: chat_pb2.ChatRequest, terms: Terms) -> Prompt:
        """The prompt of a conversation; raises CallError naming the field."""
        template = self._tokenizer.chat_template
        if template is None:
            raise CallError(reasons.ERROR_REASON_NO_CHAT_TEMPLATE, "the model has no chat template; use Generate")
        check_messages(request, self._settings)
        size = self._check_size("messages", said(request), terms)
        messages = for_template(request, terms.tools, template.knows_tools)
        specs = terms.tools.specs if template.knows_tools else ()
        tokens = await self._off_loop("messages", size, lambda: self._tokenizer.encode_chat(messages, tools=specs))
        return self._kept("messages", tokens, terms)

    async def tokenize(self, text: str, parse_special: bool) -> Sequence[int]:
        """The ids of any text, also one beyond the context; raises CallError naming the field."""
        size = self._check_bytes("text", text)
        if parse_special:
            return await self._off_loop("text", size, lambda: self._tokenizer.encode_prompt(text))
        return await self._off_loop("text", size, lambda: self._tokenizer.encode(text, parse_special=False))

    def detokenize(self, request: inference_pb2.DetokenizeRequest) -> str:
        """The text of ids, at most a context of them; raises CallError naming the field."""
        violations: list[Violation] = []
        fields = Fields(request, "", violations)
        ids: list[int] = []
        if fields.count("token_ids", self._context_length):
            ids = fields.token_ids("token_ids", self._tokenizer.vocab_size)
        skips = fields.flag("skip_special_tokens", True)
        refuse_if_any(violations)
        return self._tokenizer.decode(ids, skip_special_tokens=skips)

    def _given(self, ids: Sequence[int], request: inference_pb2.GenerateRequest, terms: Terms) -> Sequence[int]:
        violations: list[Violation] = []
        if terms.max_prompt_tokens is None:
            # The length comes first: the ids of a prompt that is far too long are not worth reading.
            check_context(len(ids), self._context_length)
        tokens = Fields(request.token_ids, "token_ids", violations).token_ids("ids", self._vocab_size)
        refuse_if_any(violations)
        return tokens

    def _kept(self, field: str, tokens: Sequence[int], terms: Terms) -> Prompt:
        """The prompt after truncation, which must not be empty."""
        if not tokens:
            raise invalid([Violation(field, "must have at least one token, has none")])
        if terms.max_prompt_tokens is not None:
            tokens = tokens[-terms.max_prompt_tokens :]
        skips = terms.output.skip_special_tokens
        return Prompt(tokens, self._tokenizer.decode(tokens, skips) if terms.shown.prompt else "")

    def _check_bytes(self, field: str, text: str) -> int:
        size = len(text.encode())
        if size > self._settings.max_prompt_bytes:
            description = f"must have at most {self._settings.max_prompt_bytes} bytes of UTF-8, has {size}"
            raise invalid([Violation(field, description)])
        return size

    def _check_size(self, field: str, text: str, terms: Terms) -> int:
        size = self._check_bytes(field, text)
        is_suspect = size >= self._context_length and terms.max_prompt_tokens is None
        fewest = self._tokenizer.fewest_tokens(text) if is_suspect else 0
        if fewest >= self._context_length:
            message = f"{field}: {size} bytes are at least {fewest} tokens; the context is {self._context_length}"
            raise context_exceeded(message, self._context_length, fewest)
        return size

    async def _off_loop(self, field: str, size: int, encode: Callable[[], R]) -> R:
        try:
            if size <= INLINE_BYTES:
                return encode()
            return await self._on_thread(encode)
        except (TemplateError, TextError) as error:
            raise invalid([Violation(field, str(error))]) from error

    async def _on_thread(self, encode: Callable[[], R]) -> R:
        if self._num_waiting >= self._settings.max_tokenizing:
            raise CallError(reasons.ERROR_REASON_TOO_MANY_CALLS, f"{self._num_waiting} texts wait for the tokenizer")
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, encode)
        finally:
            self._num_waiting -= 1
