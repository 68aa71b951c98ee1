"""Is this gateway serving? Exits 0 when its health says so and 1 when not: the health check of its container.

Asks on the admin listener, which is there whatever the public one demands of its callers; without one, on the public
listener, in plain text.
"""

import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.runtime.settings import environment, load
from services.runtime.settings_text import from_environment

TIMEOUT_S = 3.0


def is_serving(run_dir: Path, name: str) -> bool:
    """Whether the gateway of that name says SERVING."""
    for kind in ("admin", "listen"):
        path = run_dir / f"{name}.{kind}"
        if path.exists():
            return _says_serving(path.read_text())
    return False


def _says_serving(address: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


if __name__ == "__main__":
    settings = load(None, from_environment(environment()))
    sys.exit(not is_serving(Path(settings.links.run_dir), settings.gateway.name))
