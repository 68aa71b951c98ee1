"""The `tandem` command: serve, generate, chat, models, bench, status, admin, token.

Serve, bench, token, and what models says of this machine alone are no clients of a server.
"""

from importlib.metadata import version
from typing import Annotated

import typer

from tandem.cli import admin, models
from tandem.cli.bench import policies
from tandem.cli.chat import chat
from tandem.cli.generate import generate
from tandem.cli.load import load
from tandem.cli.serve import serve
from tandem.cli.token import token

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="markdown",
    help="Tandem, an LLM inference engine served over gRPC.",
)
# What is no option of the command is a setting, or no flag at all; serve says which.
app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(serve)
app.command()(generate)
app.command()(chat)
app.command("token")(token)
bench = typer.Typer(invoke_without_command=True, help="Put servers under load, or the scheduler into virtual time.")
bench.callback()(load)
bench.command()(policies)
app.add_typer(bench, name="bench")
app.command()(admin.status)
app.add_typer(admin.app, name="admin")


app.add_typer(models.app, name="models")


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"tandem {version('tandem')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version and leave.")
    ] = False,
) -> None:
    """Tandem, an LLM inference engine served over gRPC."""


def main() -> None:
    """The entry point."""
    app()
