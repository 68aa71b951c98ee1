"""What the engine put out, as VllmEngine's messages: chunks of a stream, and one Complete for each sequence.

Counts of a chunk are those of the chunk, as llm-d adds them up; a Complete after chunks repeats the last chunk's
tokens, as vLLM's does, and its reader counts them once. Pure.
"""

from collections.abc import Iterable, Sequence

from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from gateway.admission import Terms
from gateway.calls import Call
from gateway.mailbox import Piece
from services.wire import columns
from services.wire.messages import FinishReason, TextEnd, TokenLogprobs

FINISH_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}
ABORTED = "abort"


class Replies:
    """The replies to one call. eos_token_ids: the model's own ends, which are not told as stops that were asked for."""

    def __init__(self, call: Call, terms: Terms, eos_token_ids: Sequence[int]) -> None:
        self._call = call
        self._terms = terms
        self._eos_token_ids = eos_token_ids
        self._untold = dict.fromkeys(range(call.n))  # sequences without a Complete

    def chunk(self, piece: Piece) -> pb.GenerateResponse:
        """New tokens of one sequence."""
        token_ids = columns.unpack(piece.token_column)
        chunk = pb.GenerateStreamChunk(
            token_ids=token_ids,
            prompt_tokens=self._call.num_prompt_tokens,
            completion_tokens=len(token_ids),
            index=piece.index,
        )
        if piece.logprobs:
            chunk.output_logprobs.CopyFrom(self._logprobs(piece.logprobs))
        if self._begins(piece):
            chunk.input_logprobs.CopyFrom(self._prompt_logprobs())
        return pb.GenerateResponse(chunk=chunk)

    def complete(self, piece: Piece) -> pb.GenerateResponse:
        """The end of one sequence, with the tokens of its last piece: all of them when nothing was streamed."""
        assert piece.end is not None, "a sequence is complete at its end"
        del self._untold[piece.index]
        token_ids = columns.unpack(piece.token_column)
        complete = pb.GenerateComplete(
            output_ids=token_ids,
            finish_reason=FINISH_REASONS[piece.end.reason],
            prompt_tokens=self._call.num_prompt_tokens,
            completion_tokens=len(token_ids),
            cached_tokens=piece.end.num_cached_tokens,
            index=piece.index,
        )
        if piece.logprobs:
            complete.output_logprobs.CopyFrom(self._logprobs(piece.logprobs))
        if self._begins(piece):
            complete.input_logprobs.CopyFrom(self._prompt_logprobs())
        self._tell_stop(complete, piece.end)
        return pb.GenerateResponse(complete=complete)

    def aborted(self) -> Iterable[pb.GenerateResponse]:
        """The ends of the sequences that an Abort found unfinished, or untold."""
        for index in self._untold:
            yield pb.GenerateResponse(
                complete=pb.GenerateComplete(
                    finish_reason=ABORTED, prompt_tokens=self._call.num_prompt_tokens, index=index
                )
            )

    def _tell_stop(self, complete: pb.GenerateComplete, end: TextEnd) -> None:
        stop = end.matched_stop
        if stop is None and end.matched_token is not None:
            stop = self._terms.stop_texts.get(end.matched_token)
        if stop is not None:
            complete.matched_stop_str = stop
        elif end.matched_token is not None and end.matched_token not in self._eos_token_ids:
            complete.matched_token_id = end.matched_token

    def _begins(self, piece: Piece) -> bool:
        """Whether what is told of the prompt goes with this piece: the first of each sequence, as vLLM has it."""
        return piece.is_first and self._terms.shown.num_prompt_logprobs is not None

    def _logprobs(self, tokens: Iterable[TokenLogprobs]) -> pb.OutputLogProbs:
        num_top = self._terms.shown.num_logprobs or 0
        logprobs = pb.OutputLogProbs()
        for token in tokens:
            chosen = token.candidates[0]
            logprobs.token_logprobs.append(chosen.logprob)
            logprobs.token_ids.append(chosen.token_id)
            if num_top:
                logprobs.top_logprobs.append(_top(token, num_top))
        return logprobs

    def _prompt_logprobs(self) -> pb.InputLogProbs:
        assert self._call.prompt is not None, "an engine does not answer before it is asked"
        prompt, reported = self._call.prompt.tokens, self._call.prompt_logprobs
        num_top = self._terms.shown.num_prompt_logprobs or 0
        logprobs = pb.InputLogProbs(token_ids=prompt)
        # Nothing is known of the first token, whether the engine says so or leaves it out.
        for token in (*[None] * (len(prompt) - len(reported)), *reported):
            logprobs.token_logprobs.add(value=None if token is None else token.candidates[0].logprob)
            if num_top:
                logprobs.top_logprobs.append(pb.TopLogProbs() if token is None else _top(token, num_top))
        return logprobs


def _top(token: TokenLogprobs, num_top: int) -> pb.TopLogProbs:
    top = sorted(token.candidates, key=lambda candidate: candidate.rank)[:num_top]
    return pb.TopLogProbs(
        values=[candidate.logprob for candidate in top], token_ids=[candidate.token_id for candidate in top]
    )
