"""A whole server on the echo backend: four processes, ready to serve, and gone again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import msgspec
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.runtime.settings import ExecutorSettings, GatewaySettings, LinkSettings, ServerSettings

CONTEXT_LENGTH = 256
START_S = 60.0

# The supervisor wants a process of its own; it prints the run directory once the server's processes run.
SERVE = """
import sys
from pathlib import Path
from services.runtime.settings import handed_down
from services.runtime.supervisor import supervise
sys.exit(supervise(handed_down(Path(sys.argv[1])), lambda run_dir: print(run_dir, flush=True)))
"""


@contextmanager
def echo_server(folder: Path) -> Iterator[grpc.Channel]:
    """A channel to a server that serves; folder: an empty one, for its settings and its log. It must end cleanly."""
    settings = ServerSettings(
        links=LinkSettings(death_s=30.0),  # a loaded machine must not look like a death
        executor=ExecutorSettings(backend="echo", context_length=CONTEXT_LENGTH, num_blocks=257),
        gateway=GatewaySettings(listen="127.0.0.1:0", drain_s=1.0),
    )
    (folder / "settings.json").write_bytes(msgspec.json.encode(settings))
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(folder / "settings.json")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
    assert server.stdout is not None
    try:
        run_dir = Path(server.stdout.readline().strip())
        with grpc.insecure_channel(_address(run_dir / "gateway-0.listen", server)) as opened:
            _wait_until_serving(opened)
            yield opened
    except (AssertionError, grpc.RpcError):
        print((folder / "log").read_text(), file=sys.stderr)
        raise
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(30)
        server.stdout.close()
    assert code == 0


def _address(listen_file: Path, server: "subprocess.Popen[str]") -> str:
    deadline = time.monotonic() + START_S
    while not listen_file.exists():
        assert server.poll() is None, "the server has ended"
        assert time.monotonic() < deadline, "the gateway does not listen"
        time.sleep(0.02)
    return listen_file.read_text()


def _wait_until_serving(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for answer in health.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=START_S):
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return
    raise AssertionError("never SERVING")
