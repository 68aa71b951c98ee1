"""`tandem chat`: a conversation in the terminal, or one question and its answer."""

import contextlib
import sys
from typing import Annotated

import typer

from tandem.cli import knobs, show
from tandem.cli.failures import line, told
from tandem.client import Client
from tandem.errors import InvalidRequest
from tandem.requests import Options
from tandem.results import Chunk

with contextlib.suppress(ImportError):  # not everywhere; where it is, it gives input() its history and its keys
    import readline  # noqa: F401

Messages = list[dict[str, str]]

WELCOME = "Ask away. /clear forgets the conversation, /exit or ctrl-D leaves, ctrl-C cuts an answer short."


def chat(
    once: Annotated[str | None, typer.Option(help="Ask this, write the answer, and leave.")] = None,
    system: Annotated[str | None, typer.Option(help="Instructions for the whole conversation.")] = None,
    address: knobs.Address = knobs.ADDRESS,
    max_tokens: knobs.MaxTokens = None,
    temperature: Annotated[
        float, typer.Option(help="0, the default here, takes the likeliest token: small models are at their best.")
    ] = 0.0,
    top_p: knobs.TopP = None,
    top_k: knobs.TopK = None,
    min_p: knobs.MinP = None,
    seed: knobs.Seed = None,
    stop: knobs.Stop = None,
    usage: knobs.ShowUsage = False,
    timeout: knobs.Timeout = None,
    tls: knobs.UsesTls = False,
    tls_ca: knobs.TlsCa = None,
    tls_certificate: knobs.TlsCertificate = None,
    tls_key: knobs.TlsKey = None,
    token: knobs.Token = None,
) -> None:
    """Talk with the model."""
    options = Options(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, stop=stop
    )
    opening = [{"role": "system", "content": system}] if system is not None else []
    with knobs.client(address, tls, (tls_ca, tls_certificate, tls_key), token) as client:
        talk = Talk(client, options, opening, usage, timeout)
        if once is not None:
            with told(address):
                talk.ask(once)
        else:
            _converse(talk, address)


class Talk:
    """One conversation: what was said so far, and how to go on."""

    def __init__(
        self, client: Client, options: Options, opening: Messages, shows_usage: bool, timeout_s: float | None
    ) -> None:
        self._client = client
        self._options = options
        self._opening = opening
        self._shows_usage = shows_usage
        self._timeout_s = timeout_s
        self._said: Messages = []

    def clear(self) -> None:
        """Forget what was said."""
        self._said = []

    def ask(self, text: str) -> None:
        """Say something and write the answer; both are remembered, also an answer that is cut short."""
        asked = [*self._said, {"role": "user", "content": text}]
        chunks: list[Chunk] = []
        try:
            with self._client.stream_chat(
                [*self._opening, *asked], timeout_s=self._timeout_s, **self._options
            ) as answer:
                show.stream(answer, chunks)
        finally:
            if chunks:
                said = "".join(chunk.text for chunk in chunks)
                self._said = [*asked, {"role": "assistant", "content": said}]
        if self._shows_usage:
            show.cost_of_stream(chunks)


def _converse(talk: Talk, address: str) -> None:
    typer.echo(WELCOME, err=True)
    while (text := _next_line()) is not None:
        if text == "/exit":
            return
        if text == "/clear":
            talk.clear()
        elif text:
            _answer(talk, text, address)


def _answer(talk: Talk, text: str, address: str) -> None:
    """One turn; what is wrong with the question ends the turn, what is wrong with the server ends the conversation."""
    with told(address):
        try:
            talk.ask(text)
        except InvalidRequest as error:
            typer.echo(f"tandem: {line(error, address)}", err=True)
        except KeyboardInterrupt:
            return


def _next_line() -> str | None:
    """What was typed; None at the end of the input or after ctrl-C."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        typer.echo(err=True)
        return None
