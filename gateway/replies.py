"""Replies: what the engine put out becomes the messages that clients read.

Two shapes of the same content, Completions and Answers; each makes the chunks of a stream and the one message of a
unary call. Pure: knows no link, no gRPC and no clock but the times written in a Call. Invariant: usage, timings and
seed stand in the last message of a stream and nowhere else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.message import Message

from gateway.admission import Terms
from gateway.calls import Call
from gateway.mailbox import Piece
from services.wire import columns, messages
from services.wire.messages import TextEnd
from tandem.v1 import chat_pb2, common_pb2, inference_pb2

Chunk = inference_pb2.GenerateChunk | chat_pb2.ChatChunk
Part = inference_pb2.Completion | chat_pb2.ChatChoice

FINISH_REASONS = {
    messages.FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    messages.FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
}


@dataclass(frozen=True)
class Summary:
    """What is said once, at the end of a call."""

    usage: common_pb2.Usage
    timings: common_pb2.Timings

    def trailers(self) -> tuple[tuple[str, str], ...]:
        """The same as trailing metadata."""
        return (
            ("x-tandem-prompt-tokens", str(self.usage.prompt_tokens)),
            ("x-tandem-completion-tokens", str(self.usage.completion_tokens)),
            ("x-tandem-cached-tokens", str(self.usage.cached_tokens)),
            ("x-tandem-queue-ms", f"{self.timings.queue_ms:.3f}"),
            ("x-tandem-ttft-ms", f"{self.timings.ttft_ms:.3f}"),
            ("x-tandem-e2e-ms", f"{self.timings.e2e_ms:.3f}"),
        )


def summary(call: Call, now: float) -> Summary:
    """What a call cost until now; for one that was broken off, what is known of it here."""
    ends = call.ends
    # The first sequence stands for the prompt: the others share it.
    first = ends.get(0)
    has_ended = len(ends) == call.n
    num_output_tokens = sum(end.num_output_tokens for end in ends.values()) if has_ended else call.num_received_tokens
    num_prompt_tokens = call.num_prompt_tokens
    usage = common_pb2.Usage(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_output_tokens,
        cached_tokens=first.num_cached_tokens if first else 0,
        total_tokens=num_prompt_tokens + num_output_tokens,
    )
    e2e_ms = (now - call.arrived) * 1000
    ttft_ms = (call.first_token - call.arrived) * 1000 if call.first_token is not None else 0.0
    timings = common_pb2.Timings(
        queue_ms=first.timings.queue_us / 1000 if first else 0.0,
        prefill_ms=first.timings.prefill_us / 1000 if first else 0.0,
        ttft_ms=ttft_ms,
        decode_ms=e2e_ms - ttft_ms if call.first_token is not None else 0.0,
        e2e_ms=e2e_ms,
    )
    return Summary(usage, timings)


class Shape(Protocol):
    """How one service words its replies."""

    def chunk(self, request_id: str, piece: Piece, last: Summary | None) -> Chunk:
        """One message of a stream; `last` is there for the last one only."""

    def whole(self, request_id: str, pieces: Sequence[Piece], total: Summary) -> Message:
        """The one message of a unary call."""


@dataclass(frozen=True)
class Completions:
    """The replies of InferenceService."""

    terms: Terms

    def chunk(self, request_id: str, piece: Piece, last: Summary | None) -> inference_pb2.GenerateChunk:
        """One message of StreamGenerate."""
        chunk = inference_pb2.GenerateChunk(request_id=request_id, index=piece.index, text=piece.text)
        _fill_chunk(chunk, self.terms, piece, last)
        return chunk

    def whole(self, request_id: str, pieces: Sequence[Piece], total: Summary) -> inference_pb2.GenerateResponse:
        """The message of Generate."""
        reply = inference_pb2.GenerateResponse(
            request_id=request_id, usage=total.usage, timings=total.timings, seed=self.terms.seed
        )
        for piece in pieces:
            part = reply.completions.add(index=piece.index, text=piece.text)
            _fill_part(part, self.terms, piece)
        return reply


@dataclass(frozen=True)
class Answers:
    """The replies of ChatService."""

    terms: Terms

    def chunk(self, request_id: str, piece: Piece, last: Summary | None) -> chat_pb2.ChatChunk:
        """One message of StreamChat."""
        role = chat_pb2.ROLE_ASSISTANT if piece.is_first else chat_pb2.ROLE_UNSPECIFIED
        delta = chat_pb2.ChatDelta(role=role, content=piece.text)
        chunk = chat_pb2.ChatChunk(request_id=request_id, index=piece.index, delta=delta)
        _fill_chunk(chunk, self.terms, piece, last)
        return chunk

    def whole(self, request_id: str, pieces: Sequence[Piece], total: Summary) -> chat_pb2.ChatResponse:
        """The message of Chat."""
        reply = chat_pb2.ChatResponse(
            request_id=request_id, usage=total.usage, timings=total.timings, seed=self.terms.seed
        )
        for piece in pieces:
            said = chat_pb2.ChatMessage(role=chat_pb2.ROLE_ASSISTANT, content=piece.text)
            part = reply.choices.add(index=piece.index, message=said)
            _fill_part(part, self.terms, piece)
        return reply


def _fill_chunk(chunk: Chunk, terms: Terms, piece: Piece, last: Summary | None) -> None:
    column = piece.token_column
    chunk.num_tokens = columns.length(column)
    if terms.returns_token_ids:
        chunk.token_ids.extend(columns.unpack(column))
    if piece.logprobs:
        chunk.logprobs.extend(_logprobs(piece.logprobs, terms))
    if piece.end is not None:
        chunk.finish.CopyFrom(_finish(piece.end, terms))
    if last is not None:
        chunk.usage.CopyFrom(last.usage)
        chunk.timings.CopyFrom(last.timings)
        chunk.seed = terms.seed


def _fill_part(part: Part, terms: Terms, piece: Piece) -> None:
    if terms.returns_token_ids:
        part.token_ids.extend(columns.unpack(piece.token_column))
    if piece.logprobs:
        part.logprobs.extend(_logprobs(piece.logprobs, terms))
    assert piece.end is not None, "a unary call is answered once every sequence has ended"
    part.finish.CopyFrom(_finish(piece.end, terms))


def _finish(end: TextEnd, terms: Terms) -> common_pb2.Finish:
    finish = common_pb2.Finish(reason=FINISH_REASONS[end.reason])
    stop = end.matched_stop
    if stop is None and end.matched_token is not None:
        # A stop text that is a special token was matched by its id; the client gets its own word back.
        stop = terms.stop_texts.get(end.matched_token)
    if stop is not None:
        finish.stop = stop
    elif end.matched_token is not None:
        finish.token_id = end.matched_token
    return finish


def _logprobs(tokens: Iterable[messages.TokenLogprobs], terms: Terms) -> Iterable[common_pb2.TokenLogprobs]:
    num_top = terms.sampling.logprobs or 0
    for token in tokens:
        ranked = sorted(token.candidates, key=lambda candidate: candidate.rank)
        yield common_pb2.TokenLogprobs(
            chosen=_candidate(token.candidates[0]), top=[_candidate(candidate) for candidate in ranked[:num_top]]
        )


def _candidate(candidate: messages.Candidate) -> common_pb2.Candidate:
    proto = common_pb2.Candidate(token_id=candidate.token_id, logprob=candidate.logprob, rank=candidate.rank)
    try:
        proto.text = candidate.token_bytes.decode()
    except UnicodeDecodeError:
        proto.raw = candidate.token_bytes
    return proto
