"""What a person sees while a server starts: progress, then one panel with what it serves and how to call it.

Asks the server itself, over gRPC, as any client would: grpc.health.v1 until it serves, then ModelService. Knows nothing
of the processes behind it; runs on a thread of its own, and a server that is unwell is not its affair.
"""

import threading
import time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from services.runtime.settings import ServerSettings
from tandem.v1 import models_pb2, models_pb2_grpc

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
        with self._console.status("starting the processes") as status:
            address = self._wait_for_address(run_dir / f"{self._settings.gateway.name}.listen")
            if address:
                status.update("loading the model")
                with grpc.insecure_channel(reachable(address)) as channel:
                    model = self._wait_for_model(channel)
        if model is not None:
            self._console.print(panel(model, address, time.monotonic() - self._start))

    def _wait_for_address(self, listen: Path) -> str:
        """The address the gateway bound; empty when the server is over before it did."""
        while not listen.exists():
            if self._is_over.wait(LOOK_EVERY_S):
                return ""
        return listen.read_text()

    def _wait_for_model(self, channel: grpc.Channel) -> models_pb2.Model | None:
        health = health_pb2_grpc.HealthStub(channel)
        models = models_pb2_grpc.ModelServiceStub(channel)  # type: ignore[no-untyped-call]
        while not self._is_over.wait(LOOK_EVERY_S):
            try:
                state = health.Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_WITHIN_S)
                if state.status == health_pb2.HealthCheckResponse.SERVING:
                    answer: models_pb2.GetModelResponse = models.GetModel(
                        models_pb2.GetModelRequest(), timeout=ANSWER_WITHIN_S
                    )
                    return answer.model
            except grpc.RpcError:
                # Not there yet, or gone again; the supervisor knows which and ends the wait.
                continue
        return None


def reachable(address: str) -> str:
    """The address under which a client on this machine reaches a server that listens there."""
    host, colon, port = address.rpartition(":")
    return f"{EVERYWHERE.get(host, host)}{colon}{port}"


def panel(model: models_pb2.Model, address: str, seconds: float) -> Panel:
    """What a server serves, where, and how to call it."""
    facts = Table.grid(padding=(0, 2))
    facts.add_row("model", f"[bold]{escape(model.name)}[/], context {model.context_length:,} tokens")
    facts.add_row("backend", escape(f"{model.backend} {model.dtype}"))
    facts.add_row("KV cache", f"{model.kv_capacity_tokens:,} tokens: {model.num_blocks:,} blocks of {model.block_size}")
    facts.add_row("running", f"up to {model.max_num_seqs:,} sequences at once")
    facts.add_row("address", f"[bold]{escape(address)}[/]")
    facts.add_row("try", escape(f"tandem generate --address {reachable(address)} --prompt Hello"))
    return Panel(facts, title="Tandem is ready", subtitle=f"started in {seconds:.1f} s", expand=False)
