"""`tandem models`: what a server serves; and, without one, the models of this machine: list, inspect, check.

Exit codes: 0, 1 when a check found something wrong, 2 for a model that is not there or cannot be read.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from services.model_file import ModelFileError
from services.runtime import models
from services.runtime.settings import ModelSettings, SettingsError
from tandem.cli import knobs
from tandem.cli.failures import BAD_INPUT, told

MIB = 1 << 20
BAD_MODEL = 1

app = typer.Typer(invoke_without_command=True, help="Say what is served; look at models of this machine.")

Model = Annotated[str, typer.Argument(help="GGUF file, directory, or ORG/NAME on the hub [default: the embedded one].")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Precision(StrEnum):
    """executor.precision."""

    FAST = "fast"
    EXACT = "exact"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@app.callback()
def served(
    context: typer.Context,
    address: knobs.Address = knobs.ADDRESS,
    tls: knobs.UsesTls = False,
    tls_ca: knobs.TlsCa = None,
    tls_certificate: knobs.TlsCertificate = None,
    tls_key: knobs.TlsKey = None,
    token: knobs.Token = None,
) -> None:
    """Without a command: say what is served, and its bounds."""
    if context.invoked_subcommand is not None:
        return
    with told(address), knobs.client(address, tls, (tls_ca, tls_certificate, tls_key), token) as client:
        for model in client.models():
            typer.echo(f"{model.name}: {model.backend} {model.dtype}, context {model.context_length} tokens")
            typer.echo(f"  KV cache of {model.kv_capacity_tokens} tokens, {model.max_num_seqs} sequences at once")
            for name, bound in model.limits.items():
                typer.echo(f"  {name} = {bound}")


@app.command("list")
def list_(
    folders: Annotated[list[Path] | None, typer.Argument(help="Where to look besides.")] = None, as_json: Json = False
) -> None:
    """List the models that are here: the embedded one, the hub's cache, and those in folders."""
    with _refused():
        found = models.local(folders or [])
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
        return
    table = Table("model", "what", "MiB", "path", box=None)
    for each in found:
        table.add_row(escape(each.name), each.kind, f"{each.num_bytes / MIB:.0f}", escape(each.path))
    _print(table)


@app.command()
def inspect(
    model: Model = "",
    memory_mb: Annotated[int, typer.Option(help="Memory for weights and KV, MiB; 0 = what is free.", min=0)] = 0,
    precision: Annotated[Precision, typer.Option(help="What executor.precision will be.")] = Precision.FAST,
    as_json: Json = False,
) -> None:
    """Say what a model is and what it takes, from its files alone."""
    from services.executor.capacity import free_memory  # noqa: PLC0415
    from services.executor.inspection import inspect as inspected  # noqa: PLC0415

    with _refused():
        found = inspected(_path(model), precision.value, memory_mb * MIB or free_memory())
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
        return
    rows = {
        "model": found.name,
        "files": f"{found.path}, {found.format}, {found.stored_as}, {found.file_bytes / MIB:,.0f} MiB",
        "family": found.family,
        "parameters": f"{found.num_parameters:,}",
        "layers": f"{found.num_layers}, hidden {found.hidden_size}",
        "heads": f"{found.num_heads} of {found.head_dim}, {found.num_kv_heads} for keys and values",
        "vocabulary": f"{found.vocab_size:,}",
        "context": f"{found.context_length:,}"
        + (f", a sliding window of {found.sliding_window:,}" if found.sliding_window else ""),
        "precision": found.precision,
        "weights": f"{found.weight_bytes / MIB:,.0f} MiB in memory",
        "KV": f"{found.kv_bytes_per_token:,} bytes a token",
        "tokens that fit": f"{found.tokens_that_fit:,} in {found.memory_bytes / MIB:,.0f} MiB beside the weights",
    }
    table = Table(show_header=False, box=None)
    for name, value in rows.items():
        table.add_row(name, escape(value))
    _print(table)


@app.command()
def check(model: Model = "", as_json: Json = False) -> None:
    """Try a model without serving it: tensors, tokenizer, chat template, a forward pass."""
    from services.executor.checking import check as findings_of  # noqa: PLC0415

    with _refused():
        path = _path(model)
    findings = []
    for finding in findings_of(path):
        findings.append(finding)
        if not as_json:
            typer.echo(f"{'ok   ' if finding.is_good else 'WRONG'}  {finding.what}: {finding.detail}")
    if as_json:
        typer.echo(msgspec.json.encode(findings).decode())
    if not all(finding.is_good for finding in findings):
        raise typer.Exit(BAD_MODEL)


def _path(model: str) -> Path:
    return models.resolve(ModelSettings(path=model))


def _print(table: Table) -> None:
    """As wide as it is where nobody looks at a screen."""
    Console(width=None if sys.stdout.isatty() else 400, soft_wrap=True).print(table)


@contextmanager
def _refused() -> Iterator[None]:
    """What is wrong with a model or its name, on one line."""
    try:
        yield
    except (SettingsError, ModelFileError) as error:
        typer.echo(f"tandem models: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
