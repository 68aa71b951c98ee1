"""`tandem chat`: a conversation in the terminal, or one question and its answer."""

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from tandem.cli import knobs, show
from tandem.cli import request_knobs as asks
from tandem.cli.failures import line, told
from tandem.client import Client
from tandem.errors import InvalidRequest
from tandem.results import Chunk
from tandem.tool_calls import ToolCall

with contextlib.suppress(ImportError):  # not everywhere; where it is, it gives input() its history and its keys
    import readline  # noqa: F401

Messages = list[dict[str, Any]]

WELCOME = "Ask away. /clear forgets the conversation, /exit or ctrl-D leaves, ctrl-C cuts an answer short."


def chat(
    once: Annotated[str | None, typer.Option(help="Ask this, write the answer, and leave.")] = None,
    system: Annotated[str | None, typer.Option(help="Instructions for the whole conversation.")] = None,
    address: knobs.Address = knobs.ADDRESS,
    max_tokens: asks.MaxTokens = None,
    min_tokens: asks.MinTokens = None,
    temperature: Annotated[
        float, typer.Option(help="0, the default here, takes the likeliest token: small models are at their best.")
    ] = 0.0,
    top_p: asks.TopP = None,
    top_k: asks.TopK = None,
    min_p: asks.MinP = None,
    repetition_penalty: asks.RepetitionPenalty = None,
    presence_penalty: asks.PresencePenalty = None,
    frequency_penalty: asks.FrequencyPenalty = None,
    logit_bias: asks.LogitBias = None,
    allowed_token_ids: asks.AllowedTokenIds = None,
    bad_words: asks.BadWords = None,
    seed: asks.Seed = None,
    json_schema: asks.JsonSchema = None,
    json_object: asks.JsonObject = None,
    regex: asks.Regex = None,
    choice: asks.Choice = None,
    grammar: asks.Grammar = None,
    stop: asks.Stop = None,
    stop_token_ids: asks.StopTokenIds = None,
    ignore_eos: asks.IgnoreEos = None,
    include_stop: asks.IncludeStop = None,
    logprobs: asks.Logprobs = None,
    prompt_logprobs: asks.PromptLogprobs = None,
    return_token_ids: asks.ReturnTokenIds = None,
    skip_special_tokens: asks.SkipSpecialTokens = None,
    max_tokens_per_message: asks.MaxTokensPerMessage = None,
    max_delay_ms: asks.MaxDelayMs = None,
    model: asks.Model = None,
    request_id: asks.RequestId = None,
    priority: asks.Priority = None,
    tenant: asks.Tenant = None,
    timeout_ms: asks.TimeoutMs = None,
    truncate_prompt_tokens: asks.TruncatePromptTokens = None,
    cache_salt: asks.CacheSalt = None,
    tools: asks.Tools = None,
    tool_choice: asks.ToolChoice = None,
    parallel_tool_calls: asks.ParallelToolCalls = None,
    usage: knobs.ShowUsage = False,
    timeout: knobs.Timeout = None,
    tls: knobs.UsesTls = False,
    tls_ca: knobs.TlsCa = None,
    tls_certificate: knobs.TlsCertificate = None,
    tls_key: knobs.TlsKey = None,
    token: knobs.Token = None,
) -> None:
    """Talk with the model."""
    options = asks.given(locals())
    opening = [{"role": "system", "content": system}] if system is not None else []
    with knobs.client(address, tls, (tls_ca, tls_certificate, tls_key), token) as client:
        talk = Talk(client, options, opening, usage, timeout)
        if once is not None:
            with told(address):
                talk.ask(once)
        else:
            _converse(talk, address)


class Talk:
    """One conversation: what was said so far, and how to go on. calls: the tools whose answers the model waits for."""

    def __init__(
        self, client: Client, options: dict[str, Any], opening: Messages, shows_usage: bool, timeout_s: float | None
    ) -> None:
        self.calls: tuple[ToolCall, ...] = ()
        self._client = client
        self._options = options
        self._opening = opening
        self._shows_usage = shows_usage
        self._timeout_s = timeout_s
        self._said: Messages = []

    def clear(self) -> None:
        """Forget what was said."""
        self._said = []
        self.calls = ()

    def ask(self, text: str) -> None:
        """Say something and write the answer; both are remembered, also an answer that is cut short."""
        self._go_on([{"role": "user", "content": text}])

    def answer(self, answers: list[str]) -> None:
        """Tell the model what its tools answered, and write what it makes of it."""
        self._go_on([call.answered(answer) for call, answer in zip(self.calls, answers, strict=True)])

    def _go_on(self, said: Messages) -> None:
        asked = [*self._said, *said]
        chunks: list[Chunk] = []
        try:
            with self._client.stream_chat(
                [*self._opening, *asked], timeout_s=self._timeout_s, **self._options
            ) as answer:
                show.stream(answer, chunks)
        finally:
            if chunks:
                self._remember(asked, chunks)
        show.details_of_stream(chunks)
        if self._shows_usage:
            show.cost_of_stream(chunks)

    def _remember(self, asked: Messages, chunks: list[Chunk]) -> None:
        self.calls = ToolCall.joined(piece for chunk in chunks for piece in chunk.tool_calls)
        message: dict[str, Any] = {"role": "assistant", "content": "".join(chunk.text for chunk in chunks)}
        self._said = [*asked, {**message, "tool_calls": self.calls} if self.calls else message]


def _converse(talk: Talk, address: str) -> None:
    typer.echo(WELCOME, err=True)
    while (text := _next_line()) is not None:
        if text == "/exit":
            return
        if text == "/clear":
            talk.clear()
        elif text:
            _answered(partial(talk.ask, text), address)
            while talk.calls:
                answers = [_next_line(f"{call.name} answers> ") for call in talk.calls]
                if None in answers:
                    return
                _answered(partial(talk.answer, [answer or "" for answer in answers]), address)


def _answered(turn: Callable[[], None], address: str) -> None:
    """One turn; what is wrong with the question ends the turn, what is wrong with the server ends the conversation."""
    with told(address):
        try:
            turn()
        except InvalidRequest as error:
            typer.echo(f"tandem: {line(error, address)}", err=True)
        except KeyboardInterrupt:
            return


def _next_line(prompt: str = "> ") -> str | None:
    """What was typed; None at the end of the input or after ctrl-C."""
    try:
        return input(prompt if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        typer.echo(err=True)
        return None
