"""The options of `tandem bench`."""

from pathlib import Path
from typing import Annotated

import typer

MAX_TURNS = 1000

Against = Annotated[
    list[str] | None,
    typer.Option(help="[NAME=]URL of an OpenAI-style server to run beside, ending in /v1; may be repeated."),
]
AgainstFields = Annotated[
    str, typer.Option(help="JSON object of fields for the bodies that those servers get, such as the model.")
]
Concurrency = Annotated[
    list[int] | None, typer.Option(min=1, help="Clients of a closed loop; may be repeated [default: 1, 8, 32].")
]
Rate = Annotated[
    list[float] | None, typer.Option(min=0.001, help="Requests a second of an open loop; may be repeated.")
]
Burst = Annotated[int, typer.Option(min=1, help="At a rate: so many requests at once; 1 = Poisson arrivals.")]
Requests = Annotated[
    Path | None, typer.Option(help="JSON lines of requests: token_ids or text, max_tokens, arrival_s.")
]
Replay = Annotated[bool, typer.Option("--replay", help="Send those at their arrival times.")]
NumRequests = Annotated[
    int | None,
    typer.Option(min=1, help="Requests of a made set [default: 3 a client, at least 16; 64 at a rate]."),
]
PromptTokens = Annotated[str, typer.Option(help="Tokens of made prompts: N, or LEAST-MOST.")]
OutputTokens = Annotated[str, typer.Option(help="Tokens of outputs: N, or LEAST-MOST.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of made sets; the same gives the same requests.")]
Turns = Annotated[int, typer.Option(min=1, max=MAX_TURNS, help="Runs of each server, by turns.")]
WarmUp = Annotated[int, typer.Option(min=0, help="Requests before anything is counted.")]
TtftTargetMs = Annotated[float, typer.Option(min=0, help="A good first token is within.")]
ItlTargetMs = Annotated[float, typer.Option(min=0, help="99 of 100 good gaps are within.")]
Json = Annotated[Path | None, typer.Option(help="Write every number to this file.")]
Plots = Annotated[Path | None, typer.Option(help="Draw into this folder (needs the extra `bench`).")]
