"""Prompts: what a client wrote becomes token ids, without holding up its neighbours.

Short texts are tokenized where they are; long ones on a thread of their own (tokenizing releases the GIL). A text that
cannot fit the model's context is refused by its size, untokenized. Knows the tokenizer, the context and the gateway's
bounds; knows no call, no link and no gRPC.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from gateway.admission import check_context, context_exceeded
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

ROLES = {chat_pb2.ROLE_SYSTEM: "system", chat_pb2.ROLE_USER: "user", chat_pb2.ROLE_ASSISTANT: "assistant"}
ROLE_NAMES = "ROLE_SYSTEM, ROLE_USER or ROLE_ASSISTANT"


class Prompts:
    """Tokenization for one served model."""

    def __init__(self, tokenizer: Tokenizer, card: ModelCard, settings: GatewaySettings, threads: Executor) -> None:
        self._tokenizer = tokenizer
        self._context_length = card.context_length
        self._vocab_size = card.vocab_size
        self._settings = settings
        self._threads = threads
        self._num_waiting = 0

    async def of_generate(self, request: inference_pb2.GenerateRequest) -> Sequence[int]:
        """The prompt of a raw request; raises CallError naming the field."""
        if request.WhichOneof("prompt") == "token_ids":
            return self._given(request.token_ids.ids, request)
        if request.WhichOneof("prompt") is None:
            raise invalid([Violation("prompt", "must be given, as text or token_ids")])
        text = request.text
        size = self._check_size("text", text)
        tokens = await self._off_loop("text", size, lambda: self._tokenizer.encode_prompt(text))
        return self._not_empty("text", tokens)

    async def of_chat(self, request: chat_pb2.ChatRequest) -> Sequence[int]:
        """The prompt of a conversation; raises CallError naming the field."""
        if self._tokenizer.chat_template is None:
            raise CallError(reasons.ERROR_REASON_NO_CHAT_TEMPLATE, "the model has no chat template; use Generate")
        self._check_messages(request)
        messages = [{"role": ROLES[message.role], "content": message.content} for message in request.messages]
        size = self._check_size("messages", "".join(message.content for message in request.messages))
        tokens = await self._off_loop("messages", size, lambda: self._tokenizer.encode_chat(messages))
        return self._not_empty("messages", tokens)

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

    def _given(self, ids: Sequence[int], request: inference_pb2.GenerateRequest) -> Sequence[int]:
        violations: list[Violation] = []
        # The length comes first: the ids of a prompt that is far too long are not worth reading.
        check_context(len(ids), self._context_length)
        tokens = Fields(request.token_ids, "token_ids", violations).token_ids("ids", self._vocab_size)
        refuse_if_any(violations)
        return self._not_empty("token_ids.ids", tokens)

    def _check_messages(self, request: chat_pb2.ChatRequest) -> None:
        violations: list[Violation] = []
        fields = Fields(request, "", violations)
        if not request.messages:
            fields.wrong("messages", "must have at least one entry")
        if fields.count("messages", self._settings.max_chat_messages):
            for index, message in enumerate(request.messages):
                if message.role not in ROLES:
                    fields.wrong(
                        f"messages[{index}].role", f"must be one of {tuple(ROLES.values())}, is {message.role}"
                    )
        refuse_if_any(violations)

    def _check_bytes(self, field: str, text: str) -> int:
        size = len(text.encode())
        if size > self._settings.max_prompt_bytes:
            description = f"must have at most {self._settings.max_prompt_bytes} bytes of UTF-8, has {size}"
            raise invalid([Violation(field, description)])
        return size

    def _check_size(self, field: str, text: str) -> int:
        size = self._check_bytes(field, text)
        fewest = self._tokenizer.fewest_tokens(text) if size >= self._context_length else 0
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

    @staticmethod
    def _not_empty(field: str, tokens: Sequence[int]) -> Sequence[int]:
        if not tokens:
            raise invalid([Violation(field, "must have at least one token, has none")])
        return tokens
