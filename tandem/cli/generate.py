"""`tandem generate`: complete one prompt."""

import sys
from typing import Annotated, Any

import typer

from tandem.cli import knobs, show
from tandem.cli import request_knobs as asks
from tandem.cli.failures import BAD_INPUT, told
from tandem.client import Client
from tandem.results import Chunk


def generate(
    prompt: Annotated[str | None, typer.Option(help="The text to complete [default: what stdin brings].")] = None,
    address: knobs.Address = knobs.ADDRESS,
    max_tokens: asks.MaxTokens = None,
    min_tokens: asks.MinTokens = None,
    temperature: asks.Temperature = None,
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
    n: asks.N = None,
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
    echo: asks.Echo = None,
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
    options = asks.given(locals())
    text = _prompt(prompt)
    with told(address), knobs.client(address, tls, (tls_ca, tls_certificate, tls_key), token) as client:
        # Several sequences at once would be written into one another.
        if stream and (n or 1) == 1:
            _stream(client, text, options, usage, timeout)
        else:
            _whole(client, text, options, usage, timeout)


def _stream(client: Client, prompt: str, options: dict[str, Any], usage: bool, timeout_s: float | None) -> None:
    chunks: list[Chunk] = []
    with client.stream_generate(prompt, timeout_s=timeout_s, **options) as answer:
        show.stream(answer, chunks)
    show.details_of_stream(chunks)
    if usage:
        show.cost_of_stream(chunks)


def _whole(client: Client, prompt: str, options: dict[str, Any], usage: bool, timeout_s: float | None) -> None:
    answer = client.generate(prompt, timeout_s=timeout_s, **options)
    show.whole(answer)
    if usage:
        show.cost(answer.usage, answer.timings, answer.seed)


def _prompt(prompt: str | None) -> str:
    if prompt is not None:
        return prompt
    if sys.stdin.isatty():
        typer.echo("tandem: give a --prompt, or pipe a text in", err=True)
        raise typer.Exit(BAD_INPUT)
    return sys.stdin.read()
