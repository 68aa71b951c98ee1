"""The options that `generate` and `chat` share; an option that is not given is the server's default."""

from typing import Annotated

import typer

from tandem.client import DEFAULT_ADDRESS

Address = Annotated[str, typer.Option(help="Where the server listens: host:port, or unix:PATH.")]
Timeout = Annotated[float | None, typer.Option(help="Seconds the call may take.")]
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens to put out [default: what the context has left].")]
MinTokens = Annotated[int | None, typer.Option(help="No stop counts before so many tokens.")]
TopP = Annotated[float | None, typer.Option(help="Keep the likeliest tokens up to this probability.")]
TopK = Annotated[int | None, typer.Option(help="Keep so many of the likeliest tokens; 0 = all.")]
MinP = Annotated[float | None, typer.Option(help="Drop tokens less likely than this times the likeliest.")]
Seed = Annotated[int | None, typer.Option(help="Makes the draws repeatable.")]
Stop = Annotated[list[str] | None, typer.Option(help="A text that ends the output; may be given several times.")]
ShowUsage = Annotated[bool, typer.Option("--usage", help="Say on stderr what the call cost.")]

ADDRESS = DEFAULT_ADDRESS
