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
    yield from _penalties(model.limits)
    yield from _masks(model)
    yield from _constraints(model.limits)
    yield from _stopping(model.limits)
    yield from _prompts(model)
    yield from _chat(model.limits)
    yield from _tools(model.limits)
    yield from _calls(model.limits)
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


def _penalties(limits: models.Limits) -> Iterator[Row]:
    for value in (*NOT_NUMBERS, -1.0, 0.0, 0.009, 100.1, 1e39):
        yield generate("sampling.repetition_penalty", sampling=common.Sampling(repetition_penalty=value))
    for value in (*NOT_NUMBERS, -2.001, 2.001, 1e39):
        yield generate("sampling.presence_penalty", sampling=common.Sampling(presence_penalty=value))
        yield generate("sampling.frequency_penalty", sampling=common.Sampling(frequency_penalty=value))
    for value in (*NOT_NUMBERS, -100.1, 100.1, 1e39):
        yield generate("sampling.logit_bias[7]", sampling=common.Sampling(logit_bias={7: value, 8: 1.0}))
    for token_id in (VOCAB_SIZE, 191_222, 2**32 - 1):
        yield generate(f"sampling.logit_bias[{token_id}]", sampling=common.Sampling(logit_bias={token_id: 1.0}))
    many = dict.fromkeys(range(limits.max_logit_bias + 1), 1.0)
    yield generate("sampling.logit_bias", sampling=common.Sampling(logit_bias=many))


def _masks(model: models.Model) -> Iterator[Row]:
    limits, ends = model.limits, model.eos_token_ids
    yield generate("sampling.allowed_token_ids[1]", sampling=common.Sampling(allowed_token_ids=[1, VOCAB_SIZE]))
    many = [7] * (limits.max_allowed_token_ids + 1)
    yield generate("sampling.allowed_token_ids", sampling=common.Sampling(allowed_token_ids=many))
    only_ends = common.Sampling(allowed_token_ids=ends)
    yield generate("sampling.allowed_token_ids", sampling=only_ends, stopping=common.Stopping(min_tokens=1))
    # "Hello" is one token, as it stands and behind a space.
    banned = common.Sampling(allowed_token_ids=[19556, *ends], bad_words=["Hello", "<|im_end|>"])
    yield generate("sampling.allowed_token_ids", sampling=banned)
    for words, name in (([""], "bad_words[0]"), (["a", ""], "bad_words[1]"), (["\x04"], "bad_words[0]")):
        yield generate(f"sampling.{name}", sampling=common.Sampling(bad_words=words))
    long = "x" * (limits.max_bad_word_chars + 1)
    yield generate("sampling.bad_words[1]", sampling=common.Sampling(bad_words=["a", long]))
    yield generate("sampling.bad_words", sampling=common.Sampling(bad_words=["a"] * (limits.max_bad_words + 1)))


def _constraints(limits: models.Limits) -> Iterator[Row]:
    for schema in ("", "{", "[]", "1", '{"a": NaN}', "[" * 30_000, '{"a":' * 200 + "1" + "}" * 200):
        yield generate("sampling.json_schema", sampling=common.Sampling(json_schema=schema))
    long = "x" * (limits.max_constraint_bytes + 1)
    yield generate("sampling.json_schema", sampling=common.Sampling(json_schema=f'{{"title": "{long}"}}'))
    yield generate("sampling.regex", sampling=common.Sampling(regex=""))
    yield generate("sampling.regex", sampling=common.Sampling(regex=long))
    yield generate("sampling.grammar", sampling=common.Sampling(grammar=""))
    yield generate("sampling.grammar", sampling=common.Sampling(grammar=long))
    yield generate("sampling.choice.texts", sampling=common.Sampling(choice=common.Choices()))
    for texts in (["a"] * (limits.max_choices + 1), [long]):
        yield generate("sampling.choice.texts", sampling=common.Sampling(choice=common.Choices(texts=texts)))
    yield generate("sampling.choice.texts[1]", sampling=common.Sampling(choice=common.Choices(texts=["a", ""])))


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
        yield generate("output.prompt_logprobs", output=common.Output(prompt_logprobs=logprobs))
    yield generate("output.max_tokens_per_message", output=common.Output(max_tokens_per_message=0))


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


def asked(field: str, **fields: object) -> Row:
    """A row for Chat, with a right message unless some are given."""
    fields.setdefault("messages", [said(chat.ROLE_USER)])
    return Row("ChatService/Chat", chat.ChatRequest(**fields), field)  # type: ignore[arg-type]


def _tools(limits: models.Limits) -> Iterator[Row]:
    tool = chat.Tool(name="f")
    for name in ("", "two words", "ü", "x" * 65, "a\n"):
        yield asked("tools[1].name", tools=[tool, chat.Tool(name=name)])
    yield asked("tools[1].name", tools=[tool, tool])
    for parameters in ("", "{", "[]", "true", '{"type": "string"}', '{"type": ["object"]}', "[" * 30_000):
        yield asked("tools[0].parameters", tools=[chat.Tool(name="f", parameters=parameters)])
    yield asked("tools", tools=[chat.Tool(name=f"f{i}") for i in range(limits.max_tools + 1)])
    yield asked("tools", tools=[chat.Tool(name="f", description="x" * limits.max_tool_bytes)])
    yield asked("tool_choice.name", tools=[tool], tool_choice=chat.ToolChoice(name="g"))
    yield asked("tool_choice.name", tool_choice=chat.ToolChoice(name="f"))
    yield asked("tool_choice.name", tools=[tool], tool_choice=chat.ToolChoice(name=""))
    yield asked("tool_choice.mode", tool_choice=chat.ToolChoice(mode=chat.TOOL_MODE_REQUIRED))
    yield asked("tool_choice.mode", tools=[tool], tool_choice=chat.ToolChoice(mode=9))  # type: ignore[arg-type]
    for choice in (None, chat.ToolChoice(mode=chat.TOOL_MODE_REQUIRED), chat.ToolChoice(name="f")):
        regex = common.Sampling(regex="a+")
        yield asked("sampling.regex", tools=[tool], tool_choice=choice, sampling=regex)
    yield asked("output.echo", output=common.Output(echo=True))


def _calls(limits: models.Limits) -> Iterator[Row]:
    call = chat.ToolCall(id="c", name="f", arguments="{}")
    user = said(chat.ROLE_USER)
    for role in (chat.ROLE_USER, chat.ROLE_SYSTEM):
        yield asked("messages[1].tool_calls", messages=[user, chat.ChatMessage(role=role, tool_calls=[call])])
    many = chat.ChatMessage(role=chat.ROLE_ASSISTANT, tool_calls=[call] * (limits.max_tool_calls + 1))
    yield asked("messages[1].tool_calls", messages=[user, many])
    yield asked("messages[1].tool_call_id", messages=[user, said(chat.ROLE_TOOL)])
    for role in (chat.ROLE_USER, chat.ROLE_ASSISTANT):
        answer = chat.ChatMessage(role=role, content="hi", tool_call_id="c")
        yield asked("messages[1].tool_call_id", messages=[user, answer])
    long = chat.ChatMessage(role=chat.ROLE_TOOL, tool_call_id="c" * 129)
    yield asked("messages[1].tool_call_id", messages=[user, long])
    big = chat.ToolCall(id="c", name="f", arguments="a " * (limits.max_prompt_bytes // 2 + 1))
    yield asked("messages", messages=[user, chat.ChatMessage(role=chat.ROLE_ASSISTANT, tool_calls=[big])])


def _rest(model: models.Model) -> Iterator[Row]:
    for request_id in ("two words", "tab\t", "ümlaut", "new\nline", "x" * (model.limits.max_request_id_chars + 1)):
        yield generate("request_id", request_id=request_id)
    yield generate("tenant", tenant="t" * (model.limits.max_tenant_chars + 1))
    yield generate("cache_salt", cache_salt="s" * (model.limits.max_cache_salt_chars + 1))
    yield generate("timeout_ms", timeout_ms=0)
    yield generate("truncate_prompt_tokens", truncate_prompt_tokens=0)
    yield generate("token_ids.ids[0]", token_ids=common.TokenIds(ids=[VOCAB_SIZE, 5]), truncate_prompt_tokens=1)
    yield generate("", "MODEL_NOT_FOUND", model="another")
    yield Row("InferenceService/StreamGenerate", pb.GenerateRequest(text="x", model="another"), "", "MODEL_NOT_FOUND")
    yield Row("InferenceService/Tokenize", pb.TokenizeRequest(text="x", model="another"), "", "MODEL_NOT_FOUND")
    yield Row("ModelService/GetModel", models.GetModelRequest(name="another"), "", "MODEL_NOT_FOUND")
    too_long = "a" * (model.limits.max_prompt_bytes + 1)
    yield Row("InferenceService/Tokenize", pb.TokenizeRequest(text=too_long), "text")
    yield Row("InferenceService/Detokenize", pb.DetokenizeRequest(token_ids=[1, VOCAB_SIZE]), "token_ids[1]")
    too_many = [1] * (model.context_length + 1)
    yield Row("InferenceService/Detokenize", pb.DetokenizeRequest(token_ids=too_many), "token_ids")
