"""Requests from keyword arguments, and the table of methods: how each is called and how its reply is read.

An option that is absent or None is left to the server's default. Knows the messages; knows no channel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_type_hints

from google.protobuf.message import Message

from tandem import results, tools
from tandem.errors import invalid_field
from tandem.options import ChatOptions, MessageSpec, Options
from tandem.results import Model
from tandem.v1 import chat_pb2, common_pb2, inference_pb2, models_pb2

Reply = TypeVar("Reply", bound=Message)
Result = TypeVar("Result")

CONSTRAINTS = tuple(field.name for field in common_pb2.Sampling.DESCRIPTOR.oneofs_by_name["constraint"].fields)

# The message within a request that holds each option.
_GROUPS: Mapping[str, type[Message]] = {
    "sampling": common_pb2.Sampling,
    "stopping": common_pb2.Stopping,
    "output": common_pb2.Output,
}


@dataclass(frozen=True)
class Method(Generic[Reply, Result]):
    """One method of the contract: its path, its reply's message, and what that reads as."""

    path: str
    reply: type[Reply]
    read: Callable[[Reply], Result]


def _tokens(reply: inference_pb2.TokenizeResponse) -> list[int]:
    return list(reply.token_ids)


def _text(reply: inference_pb2.DetokenizeResponse) -> str:
    return reply.text


def _models(reply: models_pb2.ListModelsResponse) -> list[Model]:
    return [results.model(each) for each in reply.models]


def _model(reply: models_pb2.GetModelResponse) -> Model:
    return results.model(reply.model)


_INFERENCE = "/tandem.v1.InferenceService"
_CHAT = "/tandem.v1.ChatService"
_MODELS = "/tandem.v1.ModelService"

GENERATE = Method(f"{_INFERENCE}/Generate", inference_pb2.GenerateResponse, results.generation)
STREAM_GENERATE = Method(f"{_INFERENCE}/StreamGenerate", inference_pb2.GenerateChunk, results.generation_chunk)
TOKENIZE = Method(f"{_INFERENCE}/Tokenize", inference_pb2.TokenizeResponse, _tokens)
DETOKENIZE = Method(f"{_INFERENCE}/Detokenize", inference_pb2.DetokenizeResponse, _text)
CHAT = Method(f"{_CHAT}/Chat", chat_pb2.ChatResponse, results.answer)
STREAM_CHAT = Method(f"{_CHAT}/StreamChat", chat_pb2.ChatChunk, results.answer_chunk)
LIST_MODELS = Method(f"{_MODELS}/ListModels", models_pb2.ListModelsResponse, _models)
GET_MODEL = Method(f"{_MODELS}/GetModel", models_pb2.GetModelResponse, _model)


def generate_request(prompt: str | Sequence[int], options: Options) -> inference_pb2.GenerateRequest:
    """A request to complete a text, or token ids."""
    if isinstance(prompt, str):
        return _filled(inference_pb2.GenerateRequest, {"text": prompt}, options)
    ids = _made(common_pb2.TokenIds, {"ids": list(prompt)})
    return _filled(inference_pb2.GenerateRequest, {"token_ids": ids}, options)


def chat_request(messages: Sequence[MessageSpec], options: ChatOptions) -> chat_pb2.ChatRequest:
    """A request to answer a conversation: mappings with "role" (system, user, assistant, tool) and "content"."""
    return _filled(chat_pb2.ChatRequest, {"messages": tools.messages(messages)}, options)


def tokenize_request(text: str, parse_special: bool | None, model: str | None) -> inference_pb2.TokenizeRequest:
    """A request for the ids of a text."""
    return _made(inference_pb2.TokenizeRequest, {"text": text, "parse_special": parse_special, "model": model})


def detokenize_request(
    token_ids: Sequence[int], skip_special_tokens: bool | None, model: str | None
) -> inference_pb2.DetokenizeRequest:
    """A request for the text of ids."""
    values = {"token_ids": list(token_ids), "skip_special_tokens": skip_special_tokens, "model": model}
    return _made(inference_pb2.DetokenizeRequest, values)


M = TypeVar("M", bound=Message)


# What is said more plainly in Python than in the contract.
_SPOKEN: Mapping[str, Callable[[Any], Any]] = {
    "json_schema": lambda schema: tools.schema_text("json_schema", schema),
    "choice": lambda texts: _made(common_pb2.Choices, {"texts": list(texts)}),
    "tools": tools.tools,
    "tool_choice": tools.tool_choice,
}


def _filled(kind: type[M], prompt: Mapping[str, Any], options: Options) -> M:
    """A request with each option in the message where it belongs."""
    known = ChatOptions if kind is chat_pb2.ChatRequest else Options
    given = {name: value for name, value in options.items() if value is not None}
    unknown = given.keys() - get_type_hints(known).keys()
    if unknown:
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}")
    if given.get("json_object") is False:
        del given["json_object"]  # as if it were not there
    several = [name for name in CONSTRAINTS if name in given]
    if len(several) > 1:
        raise invalid_field(several[1], f"must not be set beside {several[0]}: an output keeps to one constraint")
    given |= {name: speak(given[name]) for name, speak in _SPOKEN.items() if name in given}
    values: dict[str, Any] = dict(prompt)
    for group, group_kind in _GROUPS.items():
        names = given.keys() & group_kind.DESCRIPTOR.fields_by_name.keys()
        if names:
            values[group] = _made(group_kind, {name: given.pop(name) for name in sorted(names)})
    return _made(kind, {**values, **given})


def _made(kind: type[M], values: Mapping[str, Any]) -> M:
    """A message, value by value; one that the wire cannot carry, such as a negative seed, is named."""
    message = kind()
    for name, value in values.items():
        if value is None:
            continue
        try:
            message.MergeFrom(kind(**{name: value}))
        except ValueError as error:
            raise invalid_field(name, str(error)) from error
    return message
