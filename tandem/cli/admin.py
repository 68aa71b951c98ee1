"""`tandem status` and `tandem admin`: what a server does, and orders to it.

Without --address the server that runs on this machine under this user is found by its run directory.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToJson

from services.runtime.run_dir import PREFIX
from services.runtime.settings import temporary_root
from tandem.cli import knobs
from tandem.cli.failures import BAD_INPUT, told
from tandem.connection import Tls
from tandem.operators import Operator
from tandem.v1 import control_pb2 as pb

Address = Annotated[
    str | None, typer.Option(help="The admin listener: host:port or unix:PATH [default: this machine's one server].")
]

app = typer.Typer(no_args_is_help=True, help="Orders to a running server.")


@app.callback()
def _connect(
    context: typer.Context,
    address: Address = None,
    tls_ca: knobs.TlsCa = None,
    token: knobs.Token = None,
) -> None:
    """Where the orders go."""
    context.obj = (address, tls_ca, token)


def status(
    address: Address = None,
    tls_ca: knobs.TlsCa = None,
    token: knobs.Token = None,
    watch: Annotated[float | None, typer.Option(help="Say the load again and again, so many seconds apart.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All there is to know, as JSON.")] = False,
) -> None:
    """Say what a running server is and how busy it is."""
    with _operator((address, tls_ca, token)) as operator:
        info = operator.server_info()
        if as_json:
            typer.echo(MessageToJson(info, preserving_proto_field_name=True, always_print_fields_with_no_presence=True))
            return
        _show(info)
        if watch is not None:
            for load in operator.watch_load(watch):
                typer.echo(_line(load))


@app.command()
def drain(
    context: typer.Context,
    wait: Annotated[bool, typer.Option("--wait", help="Return when no call is open.")] = False,
) -> None:
    """Have no new call taken; health says so first. The server stays."""
    with _operator(context.obj) as operator:
        typer.echo(f"draining, {operator.drain(wait=wait)} calls open")


@app.command()
def pause(context: typer.Context) -> None:
    """Have no step planned: calls wait, their deadlines count."""
    with _operator(context.obj) as operator:
        operator.pause()


@app.command()
def resume(context: typer.Context) -> None:
    """Have steps planned again."""
    with _operator(context.obj) as operator:
        operator.resume()


@app.command()
def cancel(
    context: typer.Context,
    request_ids: Annotated[list[str] | None, typer.Argument(help="Ids of calls.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every call.")] = False,
) -> None:
    """End calls."""
    with _operator(context.obj) as operator:
        reply = operator.cancel(request_ids or (), everything=everything)
        typer.echo(f"{reply.num_cancelled} calls cancelled")
        for request_id in reply.unknown_request_ids:
            typer.echo(f"no open call has the id {request_id}", err=True)


@app.command()
def flush(context: typer.Context) -> None:
    """Forget every cached prefix that no running sequence holds."""
    with _operator(context.obj) as operator:
        typer.echo(f"{operator.flush_prefix_cache()} KV blocks given up")


@app.command("log-level")
def log_level(
    context: typer.Context,
    level: Annotated[str, typer.Argument(help="debug, info, warning or error.")],
    service: Annotated[
        list[str] | None, typer.Option(help="gateway, scheduler, executor or detokenizer; may be repeated.")
    ] = None,
) -> None:
    """Change what is logged, everywhere or in some services."""
    with _operator(context.obj) as operator:
        operator.set_log_level(level, service or ())


@contextmanager
def _operator(way: tuple[str | None, Path | None, str | None]) -> Iterator[Operator]:
    address, tls_ca, token = way
    where = address or _found()
    tls = None if tls_ca is None else Tls(tls_ca)
    try:
        operator = Operator(where, tls=tls, token=token)
    except (OSError, ValueError) as error:
        raise _refused(str(error)) from error
    with told(where), operator:
        yield operator


def _found() -> str:
    """The admin address of the one server that this user runs here."""
    files = sorted(temporary_root().glob(f"{PREFIX}*/*.admin"))
    addresses = [address for address in (file.read_text() for file in files) if _answers(address)]
    if not addresses:
        raise _refused("no server of yours runs here; --address names another's admin listener")
    if len(addresses) > 1:
        raise _refused(f"several servers run here, choose one with --address: {', '.join(addresses)}")
    return addresses[0]


def _answers(address: str) -> bool:
    """Whether somebody listens: a killed server leaves its files behind."""
    if not address.startswith("unix:"):
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(address.removeprefix("unix:")) == 0


def _refused(why: str) -> typer.Exit:
    typer.echo(f"tandem: {why}", err=True)
    return typer.Exit(BAD_INPUT)


def _show(info: pb.GetServerInfoResponse) -> None:
    state = pb.ServerState.Name(info.state).removeprefix("SERVER_STATE_").lower()
    typer.echo(f"tandem {info.version}, {info.gateway} at {info.address}: {state}, up {info.uptime_s:.0f} s")
    if info.HasField("model"):
        model = info.model
        typer.echo(f"{model.name}: {model.backend} {model.dtype}, context {model.context_length} tokens")
        typer.echo(f"{model.kv_capacity_tokens} tokens of KV, {model.max_num_seqs} sequences at once")
    if info.HasField("load"):
        typer.echo(f"{info.num_open_calls} calls open; {_line(info.load)}")


def _line(load: pb.LoadReport) -> str:
    parts = [
        f"{load.num_running} running",
        f"{load.num_waiting} waiting",
        f"KV {load.kv_usage:.0%}",
        f"{load.output_tokens_per_s:.0f} tokens/s",
        f"{load.steps_per_s:.0f} steps/s",
        f"{load.drain_rate:.2f} requests/s",
    ]
    if load.HasField("prefix_cache_hit_rate"):
        parts.append(f"prefix hits {load.prefix_cache_hit_rate:.0%}")
    if load.HasField("goodput"):
        parts.append(f"goodput {load.goodput:.0%}")
    return ", ".join(parts) + (" (paused)" if load.is_paused else "")
