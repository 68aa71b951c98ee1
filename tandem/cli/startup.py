"""What a person sees while a server starts: progress, then one panel with what it serves and how to call it.

Asks the server itself, over gRPC: where the admin listener is the socket in the run directory, which asks for neither
certificate nor token, there; elsewhere as any client would. A server that can be asked in neither way shows no panel.
Knows nothing of the processes behind it; runs on a thread of its own, and a server that is unwell is not its affair.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from services.runtime.settings import GatewaySettings, ServerSettings
from tandem.v1 import control_pb2, control_pb2_grpc, models_pb2, models_pb2_grpc

LOOK_EVERY_S = 0.1
ANSWER_WITHIN_S = 2.0
# Addresses that mean "every interface" to a server mean nothing to a client.
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}


class Startup:
    """Watches one server become ready."""

    def __init__(self, settings: ServerSettings, console: Console) -> None:
        self._settings = settings
        self._console = console
        self._is_over = threading.Event()
        self._start = time.monotonic()

    def give_up(self) -> None:
        """The server is over; `watch` returns soon. May be called from another thread."""
        self._is_over.set()

    def watch(self, run_dir: Path) -> None:
        """Show progress until the server is ready, then what it is; return early when it is over."""
        model = None
        name, gateway = self._settings.gateway.name, self._settings.gateway
        with self._console.status("starting the processes") as status:
            # The first of its addresses.
            address = self._wait_for_address(run_dir / f"{name}.listen").partition(",")[0]
            local = run_dir / f"{name}.admin"
            admin = local.read_text() if address and local.exists() else ""
            status.update("loading the model")
            if admin.startswith("unix:"):
                with grpc.insecure_channel(admin) as channel:
                    model = self._wait_for(partial(_told_to_operators, channel))
            elif address and not (gateway.tls_certificate or gateway.tokens):
                with grpc.insecure_channel(reachable(address)) as channel:
                    model = self._wait_for(partial(_told_to_anybody, channel))
        if model is not None:
            self._console.print(panel(model, address, time.monotonic() - self._start, _flags(gateway)))

    def _wait_for_address(self, listen: Path) -> str:
        """The address the gateway bound; empty when the server is over before it did."""
        while not listen.exists():
            if self._is_over.wait(LOOK_EVERY_S):
                return ""
        return listen.read_text()

    def _wait_for(self, ask: Callable[[], models_pb2.Model | None]) -> models_pb2.Model | None:
        """What is served, once it is; None when the server is over before."""
        while not self._is_over.wait(LOOK_EVERY_S):
            # Not there yet, or gone again: the supervisor knows which, and ends the wait.
            with contextlib.suppress(grpc.RpcError):
                model = ask()
                if model is not None:
                    return model
        return None


def _told_to_operators(channel: grpc.Channel) -> models_pb2.Model | None:
    control = control_pb2_grpc.ControlServiceStub(channel)  # type: ignore[no-untyped-call]
    info: control_pb2.GetServerInfoResponse = control.GetServerInfo(
        control_pb2.GetServerInfoRequest(), timeout=ANSWER_WITHIN_S
    )
    return info.model if info.state == control_pb2.SERVER_STATE_READY and info.HasField("model") else None


def _told_to_anybody(channel: grpc.Channel) -> models_pb2.Model | None:
    state = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_WITHIN_S)
    if state.status != health_pb2.HealthCheckResponse.SERVING:
        return None
    models = models_pb2_grpc.ModelServiceStub(channel)  # type: ignore[no-untyped-call]
    answer: models_pb2.GetModelResponse = models.GetModel(models_pb2.GetModelRequest(), timeout=ANSWER_WITHIN_S)
    return answer.model


def _flags(settings: GatewaySettings) -> str:
    """What a client must say beside the address."""
    parts = ["--tls-ca CA.pem"] if settings.tls_certificate else []
    parts += ["--tls-certificate ME.pem --tls-key ME.key"] if settings.tls_client_ca else []
    parts += ["--token TOKEN"] if settings.tokens else []
    return "".join(f" {part}" for part in parts)


def reachable(address: str) -> str:
    """The address under which a client on this machine reaches a server that listens there."""
    host, colon, port = address.rpartition(":")
    return f"{EVERYWHERE.get(host, host)}{colon}{port}"


def panel(model: models_pb2.Model, address: str, seconds: float, flags: str = "") -> Panel:
    """What a server serves, where, and how to call it."""
    facts = Table.grid(padding=(0, 2))
    facts.add_row("model", f"[bold]{escape(model.name)}[/], context {model.context_length:,} tokens")
    facts.add_row("backend", escape(f"{model.backend} {model.dtype}"))
    facts.add_row("KV cache", f"{model.kv_capacity_tokens:,} tokens: {model.num_blocks:,} blocks of {model.block_size}")
    facts.add_row("running", f"up to {model.max_num_seqs:,} sequences at once")
    facts.add_row("address", f"[bold]{escape(address)}[/]")
    facts.add_row("try", escape(f"tandem generate --address {reachable(address)}{flags} --prompt Hello"))
    return Panel(facts, title="Tandem is ready", subtitle=f"started in {seconds:.1f} s", expand=False)
