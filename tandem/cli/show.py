"""Showing an answer: text as it comes, then what was asked for beside it."""

import sys
from collections.abc import Iterable, Sequence

import typer

from tandem.results import Candidate, Chunk, Generation, Timings, TokenLogprobs, Usage
from tandem.tool_calls import ToolCall


def stream(chunks: Iterable[Chunk], heard: list[Chunk]) -> None:
    """Write text as it comes, and a line end; `heard` keeps every chunk, also of a stream that is broken off."""
    try:
        for chunk in chunks:
            heard.append(chunk)
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
    finally:
        if heard:
            sys.stdout.write("\n")
            sys.stdout.flush()


def whole(answer: Generation) -> None:
    """The answer of a unary call; several sequences under their numbers."""
    logprobs(answer.prompt_logprobs)
    for completion in answer.completions:
        if len(answer.completions) > 1:
            typer.echo(f"[{completion.index}]")
        typer.echo(completion.text)
        _token_ids(completion.token_ids)
        logprobs(completion.logprobs)


def details_of_stream(chunks: Sequence[Chunk]) -> None:
    """What a stream brought beside its text: tool calls, token ids, log-probabilities."""
    for call in ToolCall.joined(piece for chunk in chunks for piece in chunk.tool_calls):
        typer.echo(f"{call.name}({call.arguments})")
    _token_ids([token_id for chunk in chunks for token_id in chunk.token_ids])
    for chunk in chunks:
        logprobs(chunk.prompt_logprobs)
        logprobs(chunk.logprobs)


def _token_ids(token_ids: Sequence[int]) -> None:
    if token_ids:
        typer.echo(" ".join(map(str, token_ids)))


def logprobs(tokens: Iterable[TokenLogprobs | None]) -> None:
    """A line a token: its log-probability, its rank, itself; then the likeliest ones."""
    for token in tokens:
        if token is None:
            typer.echo(f"{'-':>9} {'-':>6}  (the first token of the prompt)")
            continue
        top = "  ".join(f"{_piece(candidate)} {candidate.logprob:.3f}" for candidate in token.top)
        typer.echo(f"{token.chosen.logprob:9.4f} {token.chosen.rank:6d}  {_piece(token.chosen):<20} {top}".rstrip())


def cost(usage: Usage, timings: Timings, seed: int) -> None:
    """What a call cost, on stderr."""
    tokens = f"{usage.prompt_tokens} prompt ({usage.cached_tokens} cached) + {usage.completion_tokens} output tokens"
    times = f"first token {timings.ttft_ms:.1f} ms, all {timings.e2e_ms:.1f} ms"
    typer.echo(f"{tokens}; {times}; seed {seed}", err=True)


def cost_of_stream(chunks: Iterable[Chunk]) -> None:
    """What a streaming call cost, which its last chunk says."""
    for chunk in chunks:
        if chunk.usage and chunk.timings and chunk.seed is not None:
            cost(chunk.usage, chunk.timings, chunk.seed)


def _piece(candidate: Candidate) -> str:
    return repr(candidate.raw if candidate.text is None else candidate.text)
