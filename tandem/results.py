"""What calls return: plain values, read from the messages of the public contract.

Knows the messages; knows no channel. Chat and plain generation return the same types: an answer is a completion whose
text the model's chat template asked for.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tandem.tool_calls import ToolCall, ToolCallDelta
from tandem.v1 import chat_pb2, common_pb2, inference_pb2, models_pb2

FINISH_REASONS = {
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
    common_pb2.FINISH_REASON_TOOL_CALLS: "tool_calls",
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One token that could stand at a position. text is None when the token holds only part of a character."""

    token_id: int
    logprob: float
    rank: int
    text: str | None
    raw: bytes


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The token that was drawn, and the likeliest ones, likeliest first."""

    chosen: Candidate
    top: tuple[Candidate, ...]


# None: the first token of a prompt, of which the model says nothing.
Scores = tuple[TokenLogprobs | None, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """How a sequence ended: reason "stop", "tool_calls" (a stop behind a call) or "length", and what stop was met."""

    reason: str
    stop: str | None = None
    token_id: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a call consumed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a call went, in milliseconds."""

    queue_ms: float
    prefill_ms: float
    ttft_ms: float
    decode_ms: float
    e2e_ms: float


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished sequence. token_ids and logprobs are empty unless asked for; with echo, the prompt's come first."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: Scores
    finish: Finish
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """An answer as a message of the conversation that goes on."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        return {**message, "tool_calls": list(self.tool_calls)} if self.tool_calls else message


@dataclass(frozen=True, slots=True)
class Generation:
    """The answer of a unary call: one completion a sequence, by index. prompt_logprobs: empty unless asked for."""

    request_id: str
    completions: tuple[Completion, ...]
    usage: Usage
    timings: Timings
    seed: int
    prompt_logprobs: Scores = ()

    @property
    def text(self) -> str:
        """The text of the first sequence, which is the only one unless n was asked for."""
        return self.completions[0].text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the first sequence."""
        return self.completions[0].tool_calls


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a stream. finish: in the last one of a sequence; usage, timings, seed: in the last one of all;
    prompt_logprobs: in the first one of sequence 0."""

    request_id: str
    index: int
    text: str
    num_tokens: int
    token_ids: tuple[int, ...]
    logprobs: Scores
    finish: Finish | None
    usage: Usage | None
    timings: Timings | None
    seed: int | None
    tool_calls: tuple[ToolCallDelta, ...] = ()
    prompt_logprobs: Scores = ()


@dataclass(frozen=True, slots=True)
class Model:
    """What is served. num_parameters and kv_bytes_per_token are None where a backend does not know."""

    name: str
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    backend: str
    dtype: str
    num_parameters: int | None
    kv_bytes_per_token: int | None
    block_size: int
    num_blocks: int
    kv_capacity_tokens: int
    max_num_seqs: int
    has_chat_template: bool
    limits: dict[str, int]


def generation(reply: inference_pb2.GenerateResponse) -> Generation:
    """Read the reply of Generate."""
    return _generation(reply, tuple(_completion(part, part.text) for part in reply.completions))


def answer(reply: chat_pb2.ChatResponse) -> Generation:
    """Read the reply of Chat."""
    return _generation(reply, tuple(_answer(choice) for choice in reply.choices))


def generation_chunk(chunk: inference_pb2.GenerateChunk) -> Chunk:
    """Read a message of StreamGenerate."""
    return _chunk(chunk, chunk.text)


def answer_chunk(chunk: chat_pb2.ChatChunk) -> Chunk:
    """Read a message of StreamChat."""
    calls = tuple(ToolCallDelta(call.index, call.id, call.name, call.arguments) for call in chunk.delta.tool_calls)
    return _chunk(chunk, chunk.delta.content, calls)


def model(proto: models_pb2.Model) -> Model:
    """Read a model's description."""
    return Model(
        name=proto.name,
        context_length=proto.context_length,
        vocab_size=proto.vocab_size,
        eos_token_ids=tuple(proto.eos_token_ids),
        backend=proto.backend,
        dtype=proto.dtype,
        num_parameters=proto.num_parameters if proto.HasField("num_parameters") else None,
        kv_bytes_per_token=proto.kv_bytes_per_token if proto.HasField("kv_bytes_per_token") else None,
        block_size=proto.block_size,
        num_blocks=proto.num_blocks,
        kv_capacity_tokens=proto.kv_capacity_tokens,
        max_num_seqs=proto.max_num_seqs,
        has_chat_template=proto.has_chat_template,
        limits={field.name: value for field, value in proto.limits.ListFields()},
    )


def _generation(
    reply: inference_pb2.GenerateResponse | chat_pb2.ChatResponse, parts: tuple[Completion, ...]
) -> Generation:
    usage, timings = _usage(reply.usage), _timings(reply.timings)
    return Generation(reply.request_id, parts, usage, timings, reply.seed, _logprobs(reply.prompt_logprobs))


def _chunk(
    chunk: inference_pb2.GenerateChunk | chat_pb2.ChatChunk, text: str, tool_calls: tuple[ToolCallDelta, ...] = ()
) -> Chunk:
    return Chunk(
        request_id=chunk.request_id,
        index=chunk.index,
        text=text,
        num_tokens=chunk.num_tokens,
        token_ids=tuple(chunk.token_ids),
        logprobs=_logprobs(chunk.logprobs),
        finish=_finish(chunk.finish) if chunk.HasField("finish") else None,
        usage=_usage(chunk.usage) if chunk.HasField("usage") else None,
        timings=_timings(chunk.timings) if chunk.HasField("timings") else None,
        seed=chunk.seed if chunk.HasField("seed") else None,
        tool_calls=tool_calls,
        prompt_logprobs=_logprobs(chunk.prompt_logprobs),
    )


def _completion(part: inference_pb2.Completion | chat_pb2.ChatChoice, text: str) -> Completion:
    return Completion(part.index, text, tuple(part.token_ids), _logprobs(part.logprobs), _finish(part.finish))


def _answer(choice: chat_pb2.ChatChoice) -> Completion:
    calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in choice.message.tool_calls)
    return replace(_completion(choice, choice.message.content), tool_calls=calls)


def _finish(finish: common_pb2.Finish) -> Finish:
    matched = finish.WhichOneof("matched")
    return Finish(
        reason=FINISH_REASONS.get(finish.reason, "unknown"),
        stop=finish.stop if matched == "stop" else None,
        token_id=finish.token_id if matched == "token_id" else None,
    )


def _usage(usage: common_pb2.Usage) -> Usage:
    return Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.total_tokens)


def _timings(timings: common_pb2.Timings) -> Timings:
    return Timings(timings.queue_ms, timings.prefill_ms, timings.ttft_ms, timings.decode_ms, timings.e2e_ms)


def _logprobs(tokens: Iterable[common_pb2.TokenLogprobs]) -> Scores:
    return tuple(
        TokenLogprobs(_candidate(token.chosen), tuple(map(_candidate, token.top))) if token.HasField("chosen") else None
        for token in tokens
    )


def _candidate(candidate: common_pb2.Candidate) -> Candidate:
    is_text = candidate.WhichOneof("piece") == "text"
    return Candidate(
        token_id=candidate.token_id,
        logprob=candidate.logprob,
        rank=candidate.rank,
        text=candidate.text if is_text else None,
        raw=candidate.text.encode() if is_text else candidate.raw,
    )
