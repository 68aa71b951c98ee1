"""Every option of a request as a flag of the same name, for `generate` and `chat`.

One that is not given is the server's default. Lists of numbers are separated by commas; long texts may stand in a file,
named behind an @.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem.options import ChatOptions

# How tokens are drawn.
Temperature = Annotated[float | None, typer.Option(help="0 takes the likeliest token [default: the server's, 1].")]
TopP = Annotated[float | None, typer.Option(help="Keep the likeliest tokens up to this probability.")]
TopK = Annotated[int | None, typer.Option(help="Keep so many of the likeliest tokens; 0 = all.")]
MinP = Annotated[float | None, typer.Option(help="Drop tokens less likely than this times the likeliest.")]
RepetitionPenalty = Annotated[float | None, typer.Option(help="Above 1: avoid tokens of prompt and output.")]
PresencePenalty = Annotated[float | None, typer.Option(help="Above 0: avoid tokens of the output; -2 to 2.")]
FrequencyPenalty = Annotated[float | None, typer.Option(help="The same for each time a token stands there.")]
LogitBias = Annotated[str | None, typer.Option(metavar="ID=BIAS,...", help="Added to logits; -100 to 100.")]
AllowedTokenIds = Annotated[str | None, typer.Option(metavar="ID,...", help="The only tokens that may be drawn.")]
BadWords = Annotated[list[str] | None, typer.Option(help="A word to avoid; may be given several times.")]
Seed = Annotated[int | None, typer.Option(help="Makes the draws repeatable.")]
N = Annotated[int | None, typer.Option("--n", "-n", help="How many sequences.")]

# What the output must be.
JsonSchema = Annotated[str | None, typer.Option(metavar="JSON|@FILE", help="JSON of this schema.")]
JsonObject = Annotated[bool | None, typer.Option("--json-object", help="Any JSON object.")]
Regex = Annotated[str | None, typer.Option(help="A text that matches from end to end.")]
Choice = Annotated[list[str] | None, typer.Option(help="One of these texts; given several times.")]
Grammar = Annotated[str | None, typer.Option(metavar="TEXT|@FILE", help="A text of this grammar.")]

# When a sequence ends.
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens to put out [default: what the context has left].")]
MinTokens = Annotated[int | None, typer.Option(help="No stop counts before so many tokens.")]
Stop = Annotated[list[str] | None, typer.Option(help="A text that ends the output; may be given several times.")]
StopTokenIds = Annotated[str | None, typer.Option(metavar="ID,...", help="Tokens that end the output.")]
IgnoreEos = Annotated[bool | None, typer.Option("--ignore-eos", help="Do not stop at the model's own end.")]
IncludeStop = Annotated[bool | None, typer.Option("--include-stop", help="Show the text that ended the output.")]

# What the answer contains.
Logprobs = Annotated[int | None, typer.Option(help="Show each token and so many of the likeliest.")]
PromptLogprobs = Annotated[int | None, typer.Option(help="The same for the prompt.")]
Echo = Annotated[bool | None, typer.Option("--echo", help="Begin with the prompt.")]
ReturnTokenIds = Annotated[bool | None, typer.Option("--return-token-ids", help="Show token ids.")]
SkipSpecialTokens = Annotated[
    bool | None, typer.Option("--skip-special-tokens/--show-special-tokens", help="As text.", show_default=False)
]

MaxTokensPerMessage = Annotated[int | None, typer.Option(help="Most tokens of one message of a stream.")]
MaxDelayMs = Annotated[int | None, typer.Option(help="Milliseconds that a stream may hold tokens back; 0 = never.")]

# The call.
Model = Annotated[str | None, typer.Option(help="The model by name [default: the one that is served].")]
RequestId = Annotated[str | None, typer.Option(help="Names the call in logs.")]
Priority = Annotated[int | None, typer.Option(help="Higher is served first.")]
Tenant = Annotated[str | None, typer.Option(help="Whom the work is for.")]
TimeoutMs = Annotated[int | None, typer.Option(help="Milliseconds that the server may take.")]
TruncatePromptTokens = Annotated[int | None, typer.Option(help="Keep the last so many tokens of the prompt.")]
CacheSalt = Annotated[str | None, typer.Option(help="Share cached prompts only with calls of the same salt.")]

# Conversations.
Tools = Annotated[
    str | None,
    typer.Option(metavar="JSON|@FILE", help="A list of functions: name, description, parameters (a JSON schema)."),
]
ToolChoice = Annotated[str | None, typer.Option(help="auto, none, required, or the tool that must be called.")]
ParallelToolCalls = Annotated[
    bool | None, typer.Option("--parallel-tool-calls/--no-parallel-tool-calls", help="More than one call an answer.")
]


def given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The options among the flags of a command, each as the client wants it. Raises typer.BadParameter."""
    options = {name: flags.get(name) for name in ChatOptions.__annotations__}
    return {name: _read(name, value) for name, value in options.items() if value is not None}


def _read(name: str, value: Any) -> Any:
    reader = _READERS.get(name)
    if reader is None:
        return value
    try:
        return reader(value)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint=f"--{name.replace('_', '-')}") from error


def _ids(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _biases(text: str) -> dict[int, float]:
    pairs = (part.partition("=") for part in text.split(","))
    return {int(token_id): float(bias) for token_id, _, bias in pairs}


def _long(text: str) -> str:
    return Path(text[1:]).read_text() if text.startswith("@") else text


def _tools(text: str) -> list[Any]:
    tools: object = json.loads(_long(text))
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("must be a list of functions")
    return tools


_READERS: Mapping[str, Callable[[str], Any]] = {
    "logit_bias": _biases,
    "allowed_token_ids": _ids,
    "stop_token_ids": _ids,
    "json_schema": _long,
    "grammar": _long,
    "tools": _tools,
}
