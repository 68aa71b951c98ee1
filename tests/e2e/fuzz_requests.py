"""Random requests over every field of the contract: mostly right, often wrong, sometimes both in one.

Each field has a strategy for values that are right or nearly so, and one over its whole type. A test holds the table
against the descriptors, so a field that the contract gains must be added here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message
from hypothesis import strategies as st

from tandem.v1 import chat_pb2, common_pb2, inference_pb2

VOCAB_SIZE = 49152
Strategy = st.SearchStrategy[Any]
M = TypeVar("M", bound=Message)

ANY_UINT32 = st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1))
ANY_UINT64 = st.integers(0, 2**64 - 1)
ANY_INT32 = st.integers(-(2**31), 2**31 - 1)
ANY_DOUBLE = st.one_of(st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e39, -1.0, 1.5]))
ANY_TEXT = st.text(max_size=30)
ANY_BOOL = st.booleans()
ANY_ID = st.one_of(st.integers(0, VOCAB_SIZE - 1), st.sampled_from([0, 2, VOCAB_SIZE - 1]))
ODD_ID = st.one_of(ANY_ID, st.sampled_from([VOCAB_SIZE, 191_222, 2**32 - 1]))

SCHEMAS = ("{}", "true", '{"type": "object"}', '{"enum": [1, "a"]}', '{"type": "array", "items": {"type": "integer"}}')
ODD_SCHEMAS = ("", "{", "[]", "1", '{"a": NaN}', "[" * 90, '{"type": "wrong"}', '{"$ref": "#/nowhere"}', '"x" * 300')
REGEXES, ODD_REGEXES = ("a+", "[0-9]{3}", "(ja|nein)", "ä."), ("", "(", "a{2,1}", "[", "a" * 300)
GRAMMARS, ODD_GRAMMARS = ('start: "a" | "b"', "start: X+\nX: /[a-z]/"), ("", "start", "start: missing", "x" * 300)
PARAMETERS = ("{}", '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}')


@dataclass(frozen=True)
class Field:
    """How a field is drawn: right or nearly so, and from everything that its type can say."""

    right: Strategy
    wild: Strategy


def repeated(inner: Strategy, most: int, beyond: int = 0) -> Strategy:
    return st.lists(inner, min_size=0, max_size=most + beyond)


SAMPLING: Mapping[str, Field] = {
    "temperature": Field(st.sampled_from([0.0, 0.5, 1.0, 1e-40]), ANY_DOUBLE),
    "top_p": Field(st.sampled_from([1e-9, 0.5, 1.0]), ANY_DOUBLE),
    "top_k": Field(st.sampled_from([-1, 0, 1, 40, 2**31 - 1]), ANY_INT32),
    "min_p": Field(st.sampled_from([0.0, 0.1, 1.0]), ANY_DOUBLE),
    "seed": Field(ANY_UINT64, ANY_UINT64),
    "n": Field(st.integers(1, 3), ANY_UINT32),
    "repetition_penalty": Field(st.sampled_from([0.01, 1.0, 1.3, 100.0]), ANY_DOUBLE),
    "presence_penalty": Field(st.sampled_from([-2.0, 0.0, 2.0]), ANY_DOUBLE),
    "frequency_penalty": Field(st.sampled_from([-2.0, 0.0, 2.0]), ANY_DOUBLE),
    "logit_bias": Field(
        st.dictionaries(ANY_ID, st.sampled_from([-100.0, 0.0, 1.5, 100.0]), max_size=3),
        st.dictionaries(ODD_ID, ANY_DOUBLE, max_size=10),
    ),
    "allowed_token_ids": Field(repeated(ANY_ID, 5), repeated(ODD_ID, 18)),
    "bad_words": Field(repeated(st.sampled_from(["Paris", "a b", "7", "<|im_end|>"]), 2), repeated(ANY_TEXT, 4)),
    "json_schema": Field(st.sampled_from(SCHEMAS), st.sampled_from(SCHEMAS + ODD_SCHEMAS)),
    "json_object": Field(ANY_BOOL, ANY_BOOL),
    "regex": Field(st.sampled_from(REGEXES), st.sampled_from(REGEXES + ODD_REGEXES)),
    "choice": Field(
        st.builds(common_pb2.Choices, texts=st.lists(st.sampled_from(["ja", 'n"ein', "ä"]), min_size=1, max_size=3)),
        st.builds(common_pb2.Choices, texts=repeated(ANY_TEXT, 6)),
    ),
    "grammar": Field(st.sampled_from(GRAMMARS), st.sampled_from(GRAMMARS + ODD_GRAMMARS)),
}
STOPPING: Mapping[str, Field] = {
    "max_tokens": Field(st.integers(1, 12), ANY_UINT32),
    "min_tokens": Field(st.integers(0, 3), ANY_UINT32),
    "stop": Field(repeated(st.sampled_from(["a", "is", "<|im_end|>", "\n"]), 2), repeated(ANY_TEXT, 6)),
    "stop_token_ids": Field(repeated(ANY_ID, 3), repeated(ODD_ID, 10)),
    "ignore_eos": Field(ANY_BOOL, ANY_BOOL),
    "include_stop": Field(ANY_BOOL, ANY_BOOL),
}
OUTPUT: Mapping[str, Field] = {
    "logprobs": Field(st.integers(0, 2), ANY_UINT32),
    "return_token_ids": Field(ANY_BOOL, ANY_BOOL),
    "skip_special_tokens": Field(ANY_BOOL, ANY_BOOL),
    "prompt_logprobs": Field(st.integers(0, 2), ANY_UINT32),
    "echo": Field(ANY_BOOL, ANY_BOOL),
    "max_tokens_per_message": Field(st.integers(1, 5), ANY_UINT32),
    "max_delay_ms": Field(st.integers(0, 5), ANY_UINT32),
}
NAMES = st.text(max_size=30)
CALL: Mapping[str, Field] = {
    "request_id": Field(st.sampled_from(["", "a", "b/c:d"]), NAMES),
    "model": Field(st.just(""), st.sampled_from(["", "another", "echo"])),
    "priority": Field(st.integers(-2, 2), ANY_INT32),
    "tenant": Field(st.sampled_from(["", "t", "Zoë"]), NAMES),
    # Short times would end calls that are right; of those that end by time a few are drawn.
    "timeout_ms": Field(st.integers(60_000, 2**32 - 1), st.sampled_from([0, 1, 2, 60_000])),
    "truncate_prompt_tokens": Field(st.integers(1, 20), ANY_UINT32),
    "cache_salt": Field(st.sampled_from(["", "s"]), NAMES),
}
TEXTS = st.sampled_from(["Hello world", "The capital of France is", "hi<|im_end|>", "ä 日本 7"])
ODD_TEXTS = st.one_of(ANY_TEXT, st.sampled_from(["", "\x04", "a " * 300, "x" * 3000]))
GENERATE: Mapping[str, Field] = {
    "text": Field(TEXTS, ODD_TEXTS),
    "token_ids": Field(
        st.builds(common_pb2.TokenIds, ids=st.lists(ANY_ID, min_size=1, max_size=20)),
        st.builds(common_pb2.TokenIds, ids=st.one_of(repeated(ODD_ID, 5), st.just([7] * 700))),
    ),
}
TOOL_CALLS = st.builds(
    chat_pb2.ToolCall, id=st.just("c"), name=st.sampled_from(["f", "x"]), arguments=st.sampled_from(["{}", "", "[1]"])
)
TALK = st.one_of(
    st.builds(chat_pb2.ChatMessage, role=st.sampled_from([1, 2, 3]), content=TEXTS),
    st.builds(chat_pb2.ChatMessage, role=st.just(3), content=TEXTS, tool_calls=repeated(TOOL_CALLS, 2)),
    st.builds(chat_pb2.ChatMessage, role=st.just(4), content=TEXTS, tool_call_id=st.just("c")),
)
ODD_TALK = st.builds(
    chat_pb2.ChatMessage,
    role=st.integers(-1, 6),
    content=ODD_TEXTS,
    tool_calls=repeated(TOOL_CALLS, 3),
    tool_call_id=st.one_of(st.none(), st.sampled_from(["", "c", "c" * 200])),
)
TOOLS = st.lists(
    st.builds(
        chat_pb2.Tool,
        name=st.sampled_from(["f", "g", "h"]),
        description=st.one_of(st.none(), st.just("does")),
        parameters=st.one_of(st.none(), st.sampled_from(PARAMETERS)),
    ),
    max_size=2,
    unique_by=lambda tool: tool.name,
)
ODD_TOOLS = st.lists(
    st.builds(
        chat_pb2.Tool,
        name=st.one_of(st.sampled_from(["f", "", "a b"]), ANY_TEXT),
        description=st.one_of(st.none(), ANY_TEXT, st.just("x" * 500)),
        parameters=st.one_of(st.none(), st.sampled_from([*PARAMETERS, "", "[]", '{"type": "string"}', "{"])),
    ),
    max_size=5,
)
CHAT: Mapping[str, Field] = {
    "messages": Field(st.lists(TALK, min_size=1, max_size=3), repeated(ODD_TALK, 7)),
    "tools": Field(TOOLS, ODD_TOOLS),
    "tool_choice": Field(
        st.one_of(st.builds(chat_pb2.ToolChoice, mode=st.sampled_from([0, 1, 2])), st.builds(chat_pb2.ToolChoice)),
        st.one_of(
            st.builds(chat_pb2.ToolChoice, mode=st.integers(0, 5)),
            st.builds(chat_pb2.ToolChoice, name=st.sampled_from(["f", "g", "", "x"])),
        ),
    ),
    "parallel_tool_calls": Field(ANY_BOOL, ANY_BOOL),
}
GROUPS: Mapping[str, tuple[type[Message], Mapping[str, Field]]] = {
    "sampling": (common_pb2.Sampling, SAMPLING),
    "stopping": (common_pb2.Stopping, STOPPING),
    "output": (common_pb2.Output, OUTPUT),
}
CONSTRAINTS = ("json_schema", "json_object", "regex", "choice", "grammar")


@st.composite
def filled(draw: st.DrawFn, kind: type[M], table: Mapping[str, Field], wildness: float) -> M:
    """A message with some of its fields; each wild with this probability."""
    message = kind()
    names = draw(st.lists(st.sampled_from(sorted(table)), unique=True, max_size=5))
    for name in names:
        if name in CONSTRAINTS and draw(st.booleans()):
            continue
        is_wild = draw(st.floats(0, 1)) < wildness
        value = draw(table[name].wild if is_wild else table[name].right)
        message.MergeFrom(kind(**{name: value}))
    return message


@st.composite
def requests(draw: st.DrawFn) -> Message:
    """A request of a generation service. How many of its fields are wild varies: none, few, all."""
    wildness = draw(st.sampled_from([0.0, 0.0, 0.1, 0.9]))
    is_chat = draw(st.booleans())
    kind: type[Message] = chat_pb2.ChatRequest if is_chat else inference_pb2.GenerateRequest
    request = draw(filled(kind, CALL, wildness))
    for name, (group, table) in GROUPS.items():
        if draw(st.booleans()):
            request.MergeFrom(kind(**{name: draw(filled(group, table, wildness))}))
    if is_chat:
        request.MergeFrom(draw(filled(kind, CHAT, wildness)))
        if draw(st.floats(0, 1)) > wildness and not request.messages:  # type: ignore[attr-defined]
            request.messages.extend(draw(CHAT["messages"].right))  # type: ignore[attr-defined]
    elif draw(st.floats(0, 1)) > wildness / 4:
        prompt = GENERATE[draw(st.sampled_from(sorted(GENERATE)))]
        value = draw(prompt.wild if draw(st.floats(0, 1)) < wildness else prompt.right)
        request.MergeFrom(kind(text=value) if isinstance(value, str) else kind(token_ids=value))
    return request
