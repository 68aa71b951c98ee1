"""What is shown while a server starts, without a server."""

import threading
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from services.runtime.settings import ServerSettings
from tandem.cli.startup import Startup, panel, reachable
from tandem.v1 import models_pb2

PATIENCE_S = 20.0


def _console() -> Console:
    return Console(file=StringIO(), width=100)


def _shown(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("listens", "reached"),
    [
        ("127.0.0.1:50051", "127.0.0.1:50051"),
        ("0.0.0.0:50051", "127.0.0.1:50051"),
        ("[::]:50051", "[::1]:50051"),
        ("localhost:1", "localhost:1"),
        ("unix:/run/tandem.sock", "unix:/run/tandem.sock"),
    ],
)
def test_a_client_on_this_machine_reaches_a_server_wherever_it_listens(listens: str, reached: str) -> None:
    assert reachable(listens) == reached


def test_the_panel_says_what_is_served_and_how_to_call_it() -> None:
    model = models_pb2.Model(
        name="a [bold] name",
        context_length=8192,
        backend="torch",
        dtype="float32",
        block_size=16,
        num_blocks=1000,
        kv_capacity_tokens=16000,
        max_num_seqs=256,
    )
    console = _console()
    console.print(panel(model, "0.0.0.0:50051", 2.34))
    shown = _shown(console)
    for fact in ("a [bold] name", "8,192", "torch float32", "16,000", "1,000 blocks of 16", "256", "0.0.0.0:50051"):
        assert fact in shown
    assert "tandem generate --address 127.0.0.1:50051" in shown
    assert "started in 2.3 s" in shown


@pytest.mark.parametrize("address", ["", "127.0.0.1:1"], ids=["before it listens", "before it serves"])
def test_watching_ends_when_the_server_is_over_before_it_was_ready(tmp_path: Path, address: str) -> None:
    if address:
        (tmp_path / "gateway-0.listen").write_text(address)
    console = _console()
    startup = Startup(ServerSettings(), console)
    watching = threading.Thread(target=startup.watch, args=(tmp_path,))
    watching.start()
    startup.give_up()
    watching.join(PATIENCE_S)
    assert not watching.is_alive()
    assert _shown(console) == ""
