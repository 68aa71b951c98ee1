"""The listener that carries VllmEngine: a gRPC server of its own beside the public one, without clients' credentials.

smg sends no token, so whoever reaches this port may use the engine: bind it to loopback or to a network that is the
cluster's own. It shares the Gateway with the public server, and its guard, which knows when every call has been told
its end. Standard health and reflection are served too.
"""

from collections.abc import Sequence

import grpc
import structlog
from smg_grpc_proto.generated import vllm_engine_pb2

from gateway.guard import Guard
from gateway.health import SERVICE_NAME as HEALTH_NAME
from gateway.health import Health
from gateway.reflection import add_reflection
from gateway.service import Gateway
from gateway.vllm.servicer import VllmServicer

log = structlog.get_logger()

SERVICE = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"]
LOOPBACK = ("127.", "localhost:", "[::1]:", "unix:")


class VllmListener:
    """One listener. options: those of the public server."""

    def __init__(self, gateway: Gateway, guard: Guard, options: Sequence[tuple[str, int]]) -> None:
        self._grpc = grpc.aio.server(options=options)
        self._guard = guard
        self._servicer = VllmServicer(gateway)
        self._health = Health((SERVICE.full_name,))

    async def bind(self, listen: str) -> str:
        """Take the port; the address that was bound. Raises RuntimeError when it is taken."""
        await self._health.add_to(self._grpc)
        self._guard.add_service(self._grpc, SERVICE, self._servicer)
        add_reflection(self._grpc, (SERVICE.full_name, HEALTH_NAME))
        port = self._grpc.add_insecure_port(listen)
        host, _, asked = listen.rpartition(":")
        return f"{host}:{port}" if asked == "0" else listen

    async def start(self, address: str) -> None:
        """Begin to answer at the address that was bound."""
        await self._grpc.start()
        log.info("gateway.vllm_listening", address=address)
        if not address.startswith(LOOPBACK):
            log.warning("gateway.vllm_open", address=address, hint="whoever reaches this port may use the engine")

    async def show(self, is_serving: bool) -> None:
        """Set its health."""
        await self._health.show(is_serving)

    async def stop(self, grace_s: float) -> None:
        """Close the port; what is still open after grace_s seconds is cut."""
        await self._grpc.stop(grace_s)
