"""A client that reads answers to their end and insists on the form of every stream."""

from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from tandem.v1 import chat_pb2_grpc, common_pb2, inference_pb2, inference_pb2_grpc

CALL_S = 60.0


def inference(channel: grpc.Channel) -> Any:
    """The stub of InferenceService; generated code has no types."""
    return inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]


def chat(channel: grpc.Channel) -> Any:
    """The stub of ChatService."""
    return chat_pb2_grpc.ChatServiceStub(channel)  # type: ignore[no-untyped-call]


@dataclass
class Answer:
    """One sequence as a client reads it. pieces: for each message its text and how many tokens were read for it."""

    pieces: list[tuple[str, int]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish: common_pb2.Finish | None = None
    usage: common_pb2.Usage | None = None

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)


def request(
    token_ids: list[int],
    *,
    max_tokens: int | None = None,
    stop: tuple[str, ...] | list[str] = (),
    skip_special_tokens: bool | None = None,
    **stopping: Any,
) -> inference_pb2.GenerateRequest:
    rules = common_pb2.Stopping(stop=stop, **stopping)
    if max_tokens is not None:
        rules.max_tokens = max_tokens
    output = common_pb2.Output(return_token_ids=True)
    if skip_special_tokens is not None:
        output.skip_special_tokens = skip_special_tokens
    return inference_pb2.GenerateRequest(token_ids=common_pb2.TokenIds(ids=token_ids), stopping=rules, output=output)


def stream(channel: grpc.Channel, wanted: inference_pb2.GenerateRequest) -> Answer:
    """Reads the stream to its end; the finish and the usage must come with the last message and no other."""
    answer = Answer()
    for chunk in inference(channel).StreamGenerate(wanted, timeout=CALL_S):
        assert answer.finish is None, "a message after the end"
        answer.pieces.append((chunk.text, chunk.num_tokens))
        answer.token_ids += chunk.token_ids
        assert chunk.HasField("finish") is chunk.HasField("usage")
        if chunk.HasField("finish"):
            answer.finish, answer.usage = chunk.finish, chunk.usage
    assert answer.finish is not None, "no end"
    assert answer.pieces[0][1] > 0, "the first message carries no token"
    return answer


def answer_both_ways(channel: grpc.Channel, wanted: inference_pb2.GenerateRequest) -> Answer:
    """The stream's answer, which must be the unary call's answer too."""
    answer = stream(channel, wanted)
    reply = inference(channel).Generate(wanted, timeout=CALL_S)
    (completion,) = reply.completions
    assert (completion.text, list(completion.token_ids)) == (answer.text, answer.token_ids)
    assert answer.usage is not None
    reply.usage.cached_tokens = answer.usage.cached_tokens  # the second call may find what the first has computed
    assert completion.finish == answer.finish and reply.usage == answer.usage
    return answer


def refused(channel: grpc.Channel, wanted: inference_pb2.GenerateRequest) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        inference(channel).Generate(wanted, timeout=CALL_S)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    return str(caught.value.details())
