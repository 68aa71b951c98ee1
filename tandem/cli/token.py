"""`tandem token`: a new bearer token, and its entry for the server's file of tokens."""

import json
from typing import Annotated

import typer

from services.runtime import access


def token(
    name: Annotated[str, typer.Argument(help="Whose it is: for logs and errors.")],
    tenant: Annotated[str, typer.Option(help="Every call is for this tenant [default: as the request says].")] = "",
    max_calls: Annotated[int, typer.Option(min=0, help="Calls open at once; 0 = no bound.")] = 0,
    max_calls_per_minute: Annotated[int, typer.Option(min=0, help="Calls that may begin; 0 = no bound.")] = 0,
) -> None:
    """Make a bearer token: its entry goes to stdout (`>> tokens.toml`), the token itself to stderr, once."""
    made = access.mint()
    entry: dict[str, str | int] = {"name": name, "sha256": access.digest(made), "tenant": tenant}
    entry |= {"max_calls": max_calls, "max_calls_per_minute": max_calls_per_minute}
    typer.echo("[[token]]")
    for key, value in entry.items():
        if value:
            typer.echo(f"{key} = {json.dumps(value)}")
    typer.echo(f"the token, which nothing keeps: {made}", err=True)
