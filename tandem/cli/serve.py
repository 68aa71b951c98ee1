"""`tandem serve`: settings from a file and flags, the four processes, and one panel when they are ready.

Exit codes: 0 after an orderly stop, 1 when a process failed or died (its log says why), 2 for settings that cannot be.
"""

import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from services.runtime import access, logs, models
from services.runtime.settings import GatewaySettings, ServerSettings, SettingsError, environment, load, merged
from services.runtime.settings_text import from_environment, from_flags, to_toml
from services.runtime.supervisor import supervise
from tandem.cli.startup import Startup

BAD_SETTINGS = 2


def serve(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(help="TOML file with a section for each service.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="GGUF file, directory, or ORG/NAME on the hub [default: the embedded model]."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="host:port (0 picks a free one) or unix:path; several, separated by commas.")
    ] = None,
    metrics_listen: Annotated[str | None, typer.Option(help="host:port of /metrics for Prometheus.")] = None,
    admin_listen: Annotated[
        str | None, typer.Option(help="Where operators call [default: a socket that only this user reaches].")
    ] = None,
    tls_certificate: Annotated[str | None, typer.Option(help="PEM file; with --tls-key every port is TLS.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="PEM file of the certificate's key.")] = None,
    tls_client_ca: Annotated[str | None, typer.Option(help="PEM file; clients must show a certificate of it.")] = None,
    tokens: Annotated[str | None, typer.Option(help="TOML file of the bearer tokens that may call.")] = None,
    backend: Annotated[str | None, typer.Option(help="torch, simulated or echo.")] = None,
    depth: Annotated[int | None, typer.Option(help="Plans in flight: 1 (no overlap), 2 or 3.")] = None,
    token_budget: Annotated[int | None, typer.Option(help="Most tokens one step computes.")] = None,
    chunk_size: Annotated[int | None, typer.Option(help="Most prompt tokens of one row; 0 = the budget.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most sequences that run at once.")] = None,
    policy: Annotated[str | None, typer.Option(help="fcfs, priority, fair or static.")] = None,
    preemption: Annotated[str | None, typer.Option(help="recompute, swap or auto.")] = None,
    swap_space_mb: Annotated[int | None, typer.Option(help="Host memory for swapped KV, MiB.")] = None,
    prefix_cache: Annotated[bool | None, typer.Option(help="Find KV of prompts seen before.")] = None,
    inter_token_ms: Annotated[float | None, typer.Option(help="Target for a step with decode rows; 0 = none.")] = None,
    num_blocks: Annotated[int | None, typer.Option(help="KV blocks; 0 = as many as memory has room for.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens of a KV block.")] = None,
    step_fixed_us: Annotated[float | None, typer.Option(help="simulated, echo: duration of a step.")] = None,
    step_per_token_us: Annotated[float | None, typer.Option(help="simulated, echo: more for each token.")] = None,
    step_per_kv_token_us: Annotated[float | None, typer.Option(help="simulated, echo: and each position read.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every setting as TOML, and leave.")
    ] = False,
) -> None:
    """Serve a model: start the engine's processes, and stop them on SIGTERM or ctrl-C (twice: at once).

    Every setting has a flag, as in --scheduler.max_waiting 64, and an environment variable, as in
    TANDEM_SCHEDULER_MAX_WAITING=64; flags win over the environment, and that over the file. --print-config lists them.
    """
    flags: dict[str, Any] = {
        "model": {"path": model},
        "gateway": {
            "listen": listen,
            "metrics_listen": metrics_listen,
            "admin_listen": admin_listen,
            "tls_certificate": tls_certificate,
            "tls_key": tls_key,
            "tls_client_ca": tls_client_ca,
            "tokens": tokens,
        },
        "scheduler": {
            "depth": depth,
            "token_budget": token_budget,
            "chunk_size": chunk_size,
            "max_num_seqs": max_num_seqs,
            "policy": policy,
            "preemption": preemption,
            "prefix_cache": prefix_cache,
            "inter_token_ms": inter_token_ms,
        },
        "executor": {
            "backend": backend,
            "num_blocks": num_blocks,
            "swap_space_mb": swap_space_mb,
            "block_size": block_size,
            "step_fixed_us": step_fixed_us,
            "step_per_token_us": step_per_token_us,
            "step_per_kv_token_us": step_per_kv_token_us,
        },
        "log_level": log_level,
    }
    try:
        given = merged(from_environment(environment()), from_flags(context.args), _given(flags))
        settings = load(config, given)
        if print_config:
            typer.echo(to_toml(settings), nl=False)
            raise typer.Exit
        code = run(settings)
    except SettingsError as error:
        print(f"tandem serve: {error}", file=sys.stderr)
        code = BAD_SETTINGS
    raise typer.Exit(code)


def run(settings: ServerSettings) -> int:
    """Serve until stopped; the exit code. Raises SettingsError before anything is started."""
    models.resolve(settings.model)
    _check_files(settings.gateway)
    logs.configure("supervisor", settings.log_level)
    console = Console(stderr=True)
    startup = Startup(settings, console)
    watching: list[threading.Thread] = []

    def watch(run_dir: Path) -> None:
        # Beside the supervisor, which needs this thread; it ends when the server is ready or over.
        watching.append(threading.Thread(target=startup.watch, args=(run_dir,), name="startup"))
        watching[0].start()

    try:
        code = supervise(settings, watch)
    finally:
        startup.give_up()
        for thread in watching:
            thread.join()
    if code:
        console.print("[bold red]tandem serve:[/] the server ended with an error; the log above says why")
    return code


def _check_files(settings: GatewaySettings) -> None:
    """Raise SettingsError for a file that the gateway would miss."""
    for name in ("tls_certificate", "tls_key", "tls_client_ca"):
        path = getattr(settings, name)
        if path and not Path(path).is_file():
            raise SettingsError(f"gateway.{name}: no file at {path}")
    if settings.tokens:
        access.load(Path(settings.tokens))


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given, without those that were not."""
    given = {key: _given(value) if isinstance(value, dict) else value for key, value in flags.items()}
    return {key: value for key, value in given.items() if value is not None}
