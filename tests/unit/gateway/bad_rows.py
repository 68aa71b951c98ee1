"""Requests that must be refused, and how: one row for each way a field can be wrong.

Held against a gateway over memory links here, and against whole servers in tests/e2e. The rows assume a context of 512
tokens or more, 49152 token ids, and the limits that `GetModel` reports, handed in as `Limits`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.message import Message

from tandem.v1 import chat_pb2 as chat
from tandem.v1 import common_pb2 as common
from tandem.v1 import inference_pb2 as pb
from tandem.v1 import models_pb2 as models

VOCAB_SIZE = 49152
NOT_NUMBERS = (math.nan, math.inf, -math.inf)
HELLO = common.TokenIds(ids=[19556])


@dataclass(frozen=True)
class Row:
    """One bad request: the method, the request, the reason and the field that the refusal names ("" for none)."""

    method: str
    request: Message
    field: str
    reason: str = "INVALID_FIELD"

    def __str__(self) -> str:
        return f"{self.method.partition('/')[2]}-{self.field or self.reason}"


def generate(field: str, reason: str = "INVALID_FIELD", **fields: object) -> Row:
    """A row for Generate, with a right prompt unless one is given."""
    if not {"text", "token_ids"} & fields.keys():
        fields["token_ids"] = HELLO
    return Row("InferenceService/Generate", pb.GenerateRequest(**fields), field, reason)  # type: ignore[arg-type]


def said(role: "chat.Role", content: str = "hi") -> chat.ChatMessage:
    return chat.ChatMessage(role=role, content=content)


def rows(model: models.Model) -> Iterator[Row]:
    """Every row, against the model's own bounds."""
    yield from _sampling(model.limits)
    yield from _stopping(model.limits)
    yield from _prompts(model)
    yield from _chat(model.limits)
    yield from _rest(model)


def _sampling(limits: models.Limits) -> Iterator[Row]:
    for value in (*NOT_NUMBERS, -1.0, -0.001, 1e39):
        yield generate("sampling.temperature", sampling=common.Sampling(temperature=value))
    for value in (*NOT_NUMBERS, -1.0, 0.0, 1.5, 1.0000001):
        yield generate("sampling.top_p", sampling=common.Sampling(top_p=value))
    for value in (*NOT_NUMBERS, -1.0, -1e-9, 1.5):
        yield generate("sampling.min_p", sampling=common.Sampling(min_p=value))
    for top_k in (-2, -(2**31)):
        yield generate("sampling.top_k", sampling=common.Sampling(top_k=top_k))
    for n in (0, limits.max_n + 1, 2**32 - 1):
        yield generate("sampling.n", sampling=common.Sampling(n=n))


def _stopping(limits: models.Limits) -> Iterator[Row]:
    yield generate("stopping.max_tokens", stopping=common.Stopping(max_tokens=0))
    yield generate("stopping.min_tokens", stopping=common.Stopping(min_tokens=5, max_tokens=3))
    yield generate("stopping.min_tokens", stopping=common.Stopping(min_tokens=2**32 - 1))
    yield generate("stopping.stop[0]", stopping=common.Stopping(stop=[""]))
    yield generate("stopping.stop[0]", stopping=common.Stopping(stop=["", "x"]))
    yield generate("stopping.stop[1]", stopping=common.Stopping(stop=["x", ""]))
    yield generate("stopping.stop[0]", stopping=common.Stopping(stop=["x" * (limits.max_stop_string_chars + 1)]))
    yield generate("stopping.stop", stopping=common.Stopping(stop=[f"s{i}" for i in range(10_000)]))
    for token_id in (VOCAB_SIZE, 191_222, 2**31, 2**32 - 1):
        yield generate("stopping.stop_token_ids[0]", stopping=common.Stopping(stop_token_ids=[token_id]))
    yield generate("stopping.stop_token_ids[2]", stopping=common.Stopping(stop_token_ids=[1, 2, VOCAB_SIZE, 3]))
    too_many = [7] * (limits.max_stop_token_ids + 1)
    yield generate("stopping.stop_token_ids", stopping=common.Stopping(stop_token_ids=too_many))
    for logprobs in (limits.max_logprobs + 1, 2**32 - 1):
        yield generate("output.logprobs", output=common.Output(logprobs=logprobs))


def _prompts(model: models.Model) -> Iterator[Row]:
    yield Row("InferenceService/Generate", pb.GenerateRequest(), "prompt")
    # These are no tokens: the vocabulary has none for some byte values.
    for text in ("", "\x04", "\x06\x13\x14"):
        yield generate("text", text=text)
    yield generate("token_ids.ids", token_ids=common.TokenIds())
    for token_id in (VOCAB_SIZE, 2**32 - 1):
        yield generate("token_ids.ids[1]", token_ids=common.TokenIds(ids=[5, token_id]))
    yield generate("text", text="a " * (5 * 1024 * 1024 // 2))
    context = model.context_length
    for ids in ([1] * context, [1] * (context + 1), [1] * 200_000):
        yield generate("", "CONTEXT_LENGTH_EXCEEDED", token_ids=common.TokenIds(ids=ids))
    yield generate("", "CONTEXT_LENGTH_EXCEEDED", text="a " * context)
    yield generate("", "CONTEXT_LENGTH_EXCEEDED", stopping=common.Stopping(max_tokens=context))
    yield generate("", "CONTEXT_LENGTH_EXCEEDED", stopping=common.Stopping(max_tokens=2**32 - 1))


def _chat(limits: models.Limits) -> Iterator[Row]:
    for role in (0, 5, 99, -1):
        messages = [said(chat.ROLE_USER), said(role)]  # type: ignore[arg-type]
        yield Row("ChatService/Chat", chat.ChatRequest(messages=messages), "messages[1].role")
    yield Row("ChatService/Chat", chat.ChatRequest(), "messages")
    many = [said(chat.ROLE_USER)] * (limits.max_chat_messages + 1)
    yield Row("ChatService/Chat", chat.ChatRequest(messages=many), "messages")
    long = [said(chat.ROLE_USER, "a " * (limits.max_prompt_bytes // 2 + 1))]
    yield Row("ChatService/Chat", chat.ChatRequest(messages=long), "messages")
    hot = chat.ChatRequest(messages=[said(chat.ROLE_USER)], sampling=common.Sampling(temperature=math.nan))
    yield Row("ChatService/Chat", hot, "sampling.temperature")
    streamed = chat.ChatRequest(messages=[said(chat.ROLE_USER)], stopping=common.Stopping(max_tokens=0))
    yield Row("ChatService/StreamChat", streamed, "stopping.max_tokens")


def _rest(model: models.Model) -> Iterator[Row]:
    for request_id in ("two words", "tab\t", "ümlaut", "new\nline", "x" * (model.limits.max_request_id_chars + 1)):
        yield generate("request_id", request_id=request_id)
    yield generate("tenant", tenant="t" * (model.limits.max_tenant_chars + 1))
    yield generate("", "MODEL_NOT_FOUND", model="another")
    yield Row("InferenceService/StreamGenerate", pb.GenerateRequest(text="x", model="another"), "", "MODEL_NOT_FOUND")
    yield Row("InferenceService/Tokenize", pb.TokenizeRequest(text="x", model="another"), "", "MODEL_NOT_FOUND")
    yield Row("ModelService/GetModel", models.GetModelRequest(name="another"), "", "MODEL_NOT_FOUND")
    too_long = "a" * (model.limits.max_prompt_bytes + 1)
    yield Row("InferenceService/Tokenize", pb.TokenizeRequest(text=too_long), "text")
    yield Row("InferenceService/Detokenize", pb.DetokenizeRequest(token_ids=[1, VOCAB_SIZE]), "token_ids[1]")
    too_many = [1] * (model.context_length + 1)
    yield Row("InferenceService/Detokenize", pb.DetokenizeRequest(token_ids=too_many), "token_ids")
