"""The options that the commands of clients share; an option that is not given is the server's default."""

from pathlib import Path
from typing import Annotated

import typer

from tandem.cli.failures import BAD_INPUT
from tandem.client import Client
from tandem.connection import DEFAULT_ADDRESS, TOKEN_VARIABLE, Tls

Address = Annotated[str, typer.Option(help="Where the server listens: host:port, or unix:PATH.")]
TlsCa = Annotated[
    Path | None, typer.Option(envvar="TANDEM_TLS_CA", help="PEM file of who vouches for the server; makes it TLS.")
]
TlsCertificate = Annotated[
    Path | None, typer.Option(envvar="TANDEM_TLS_CERTIFICATE", help="PEM file, where the server asks who calls.")
]
TlsKey = Annotated[Path | None, typer.Option(envvar="TANDEM_TLS_KEY", help="PEM file of the certificate's key.")]
UsesTls = Annotated[bool, typer.Option("--tls", help="TLS with whom this machine trusts.")]
Token = Annotated[str | None, typer.Option(envvar=TOKEN_VARIABLE, help="The bearer token to show.")]
Timeout = Annotated[float | None, typer.Option(help="Seconds the call may take.")]
ShowUsage = Annotated[bool, typer.Option("--usage", help="Say on stderr what the call cost.")]

ADDRESS = DEFAULT_ADDRESS


def client(
    address: str, is_tls: bool, files: tuple[Path | None, Path | None, Path | None], token: str | None
) -> Client:
    """A client as the flags want it. files: those of --tls-ca, --tls-certificate and --tls-key."""
    tls = Tls(*files) if is_tls or any(files) else None
    try:
        return Client(address, tls=tls, token=token)
    except (OSError, ValueError) as error:
        typer.echo(f"tandem: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
