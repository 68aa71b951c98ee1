"""Replies: what the engine put out becomes the messages that clients read.

Two shapes of the same content, Completions and Answers; each makes the chunks of a stream and the one message of a
unary call, and lives as long as one call. Knows no link, no gRPC and no clock but the times written in a Call.
Invariants: usage, timings and seed stand in the last message of a stream and nowhere else; what an echo puts before a
sequence stands before its first token.
"""

from collections.abc import Sequence
from typing import Protocol

from google.protobuf.message import Message

from gateway import scores
from gateway.admission import Terms
from gateway.calls import Call
from gateway.mailbox import Piece
from gateway.summary import Summary
from gateway.tool_calls import AnswerReader, Said
from services.wire import columns, messages
from services.wire.messages import TextEnd
from tandem.v1 import chat_pb2, common_pb2, inference_pb2

Chunk = inference_pb2.GenerateChunk | chat_pb2.ChatChunk
Part = inference_pb2.Completion | chat_pb2.ChatChoice
Whole = inference_pb2.GenerateResponse | chat_pb2.ChatResponse

FINISH_REASONS = {
    messages.FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    messages.FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
}


class Shape(Protocol):
    """How one service words the replies of one call."""

    def chunk(self, call: Call, piece: Piece, last: Summary | None) -> Chunk:
        """One message of a stream, good until the next is asked for; `last` is there for the last one only."""

    def whole(self, call: Call, pieces: Sequence[Piece], total: Summary) -> Message:
        """The one message of a unary call."""


class Completions:
    """The replies of InferenceService."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._plain = inference_pb2.GenerateChunk()
        self._is_plain = not terms.shown.token_ids and terms.shown.num_logprobs is None

    def chunk(self, call: Call, piece: Piece, last: Summary | None) -> inference_pb2.GenerateChunk:
        """One message of StreamGenerate."""
        if self._is_plain and last is None and not piece.is_first and piece.end is None:
            # Most messages of most streams: one object, written out before the next one is asked for.
            chunk = self._plain
            chunk.request_id = call.identity.request
            chunk.index, chunk.text, chunk.num_tokens = piece.index, piece.text, piece.num_tokens
            return chunk
        text = _echo(call, piece) + piece.text
        chunk = inference_pb2.GenerateChunk(request_id=call.identity.request, index=piece.index, text=text)
        _fill_chunk(chunk, self._terms, call, piece)
        _conclude(chunk, self._terms, last)
        return chunk

    def whole(self, call: Call, pieces: Sequence[Piece], total: Summary) -> inference_pb2.GenerateResponse:
        """The message of Generate."""
        reply = inference_pb2.GenerateResponse(request_id=call.identity.request)
        for piece in pieces:
            part = reply.completions.add(index=piece.index, text=_echo(call, piece) + piece.text)
            _fill_part(part, self._terms, call, piece)
        _fill_whole(reply, self._terms, call, total)
        return reply


class Answers:
    """The replies of ChatService. Each answer is read for tool calls when there are tools."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._readers: dict[int, AnswerReader] = {}

    def chunk(self, call: Call, piece: Piece, last: Summary | None) -> chat_pb2.ChatChunk:
        """One message of StreamChat."""
        role = chat_pb2.ROLE_ASSISTANT if piece.is_first else chat_pb2.ROLE_UNSPECIFIED
        said = self._read(piece)
        delta = chat_pb2.ChatDelta(role=role, content=said.content)
        for new in said.calls:
            delta.tool_calls.add(index=new.index, id=new.id, name=new.name, arguments=new.arguments)
        chunk = chat_pb2.ChatChunk(request_id=call.identity.request, index=piece.index, delta=delta)
        _fill_chunk(chunk, self._terms, call, piece)
        self._mark(chunk)
        _conclude(chunk, self._terms, last)
        return chunk

    def whole(self, call: Call, pieces: Sequence[Piece], total: Summary) -> chat_pb2.ChatResponse:
        """The message of Chat."""
        reply = chat_pb2.ChatResponse(request_id=call.identity.request)
        for piece in pieces:
            said = self._read(piece)
            message = chat_pb2.ChatMessage(role=chat_pb2.ROLE_ASSISTANT, content=said.content)
            for new in said.calls:
                if new.id:
                    message.tool_calls.add(id=new.id, name=new.name)
                message.tool_calls[new.index].arguments += new.arguments
            part = reply.choices.add(index=piece.index, message=message)
            _fill_part(part, self._terms, call, piece)
            self._mark(part)
        _fill_whole(reply, self._terms, call, total)
        return reply

    def _read(self, piece: Piece) -> Said:
        """What the new text means; at the end of a sequence, with what was held back."""
        if not self._terms.tools.specs:
            return Said(piece.text)
        reader = self._readers.get(piece.index)
        if reader is None:
            reader = self._readers[piece.index] = AnswerReader(self._terms.tools)
        said = reader.feed(piece.text)
        return said if piece.end is None else said + reader.finish()

    def _mark(self, message: chat_pb2.ChatChunk | chat_pb2.ChatChoice) -> None:
        """An answer that stopped behind a tool call says so."""
        reader = self._readers.get(message.index)
        if reader is not None and reader.num_calls and message.finish.reason == common_pb2.FINISH_REASON_STOP:
            message.finish.reason = common_pb2.FINISH_REASON_TOOL_CALLS


def _echo(call: Call, piece: Piece) -> str:
    assert call.prompt is not None, "an engine does not answer before it is asked"
    return call.prompt.text if piece.is_first else ""


def _fill_chunk(chunk: Chunk, terms: Terms, call: Call, piece: Piece) -> None:
    chunk.num_tokens = piece.num_tokens
    _fill_tokens(chunk, terms, call, piece)
    if piece.is_first and piece.index == 0 and terms.shown.num_prompt_logprobs is not None:
        _fill_prompt_logprobs(chunk, terms.shown.num_prompt_logprobs, call)
    if piece.end is not None:
        chunk.finish.CopyFrom(_finish(piece.end, terms))


def _conclude(chunk: Chunk, terms: Terms, last: Summary | None) -> None:
    if last is not None:
        chunk.usage.CopyFrom(last.usage)
        chunk.timings.CopyFrom(last.timings)
        chunk.seed = terms.seed


def _fill_part(part: Part, terms: Terms, call: Call, piece: Piece) -> None:
    _fill_tokens(part, terms, call, piece)
    assert piece.end is not None, "a unary call is answered once every sequence has ended"
    part.finish.CopyFrom(_finish(piece.end, terms))


def _fill_whole(reply: Whole, terms: Terms, call: Call, total: Summary) -> None:
    if terms.shown.num_prompt_logprobs is not None:
        _fill_prompt_logprobs(reply, terms.shown.num_prompt_logprobs, call)
    reply.usage.CopyFrom(total.usage)
    reply.timings.CopyFrom(total.timings)
    reply.seed = terms.seed


def _fill_tokens(message: Chunk | Part, terms: Terms, call: Call, piece: Piece) -> None:
    """Ids and log-probabilities of the new tokens, behind the prompt's where an echo begins."""
    assert call.prompt is not None
    begins_with_prompt = terms.shown.prompt and piece.is_first
    if terms.shown.token_ids:
        if begins_with_prompt:
            message.token_ids.extend(call.prompt.tokens)
        message.token_ids.extend(columns.unpack(piece.token_column))
    num_top = terms.shown.num_logprobs
    if num_top is not None:
        if begins_with_prompt:
            message.logprobs.extend(scores.of_prompt(call.prompt_logprobs, call.num_prompt_tokens, num_top))
        message.logprobs.extend(scores.of_outputs(piece.logprobs, num_top))


def _fill_prompt_logprobs(message: Chunk | Whole, num_top: int, call: Call) -> None:
    message.prompt_logprobs.extend(scores.of_prompt(call.prompt_logprobs, call.num_prompt_tokens, num_top))


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
