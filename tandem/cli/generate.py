"""`tandem generate`: complete one prompt."""

import sys
from typing import Annotated

import typer

from tandem.cli import knobs, show
from tandem.cli.failures import BAD_INPUT, told
from tandem.client import Client
from tandem.requests import Options
from tandem.results import Chunk


def generate(
    prompt: Annotated[str | None, typer.Option(help="The text to complete [default: what stdin brings].")] = None,
    address: knobs.Address = knobs.ADDRESS,
    max_tokens: knobs.MaxTokens = None,
    min_tokens: knobs.MinTokens = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 takes the likeliest token [default: the server's, 1].")
    ] = None,
    top_p: knobs.TopP = None,
    top_k: knobs.TopK = None,
    min_p: knobs.MinP = None,
    seed: knobs.Seed = None,
    stop: knobs.Stop = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Do not stop at the model's own end.")] = False,
    logprobs: Annotated[int | None, typer.Option(help="Show each token and so many of the likeliest.")] = None,
    stream: Annotated[bool, typer.Option(help="Write text as it comes, or all at once.")] = True,
    usage: knobs.ShowUsage = False,
    timeout: knobs.Timeout = None,
    tls: knobs.UsesTls = False,
    tls_ca: knobs.TlsCa = None,
    tls_certificate: knobs.TlsCertificate = None,
    tls_key: knobs.TlsKey = None,
    token: knobs.Token = None,
) -> None:
    """Complete a prompt and write the text."""
    options = Options(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=stop,
        ignore_eos=ignore_eos or None,
        logprobs=logprobs,
    )
    text = _prompt(prompt)
    with told(address), knobs.client(address, tls, (tls_ca, tls_certificate, tls_key), token) as client:
        if stream:
            _stream(client, text, options, usage, timeout)
        else:
            _whole(client, text, options, usage, timeout)


def _stream(client: Client, prompt: str, options: Options, usage: bool, timeout_s: float | None) -> None:
    chunks: list[Chunk] = []
    with client.stream_generate(prompt, timeout_s=timeout_s, **options) as answer:
        show.stream(answer, chunks)
    for chunk in chunks:
        show.logprobs(chunk.logprobs)
    if usage:
        show.cost_of_stream(chunks)


def _whole(client: Client, prompt: str, options: Options, usage: bool, timeout_s: float | None) -> None:
    answer = client.generate(prompt, timeout_s=timeout_s, **options)
    typer.echo(answer.text)
    show.logprobs(answer.completions[0].logprobs)
    if usage:
        show.cost(answer.usage, answer.timings, answer.seed)


def _prompt(prompt: str | None) -> str:
    if prompt is not None:
        return prompt
    if sys.stdin.isatty():
        typer.echo("tandem: give a --prompt, or pipe a text in", err=True)
        raise typer.Exit(BAD_INPUT)
    return sys.stdin.read()
