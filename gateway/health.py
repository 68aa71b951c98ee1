"""grpc.health.v1: SERVING while calls are taken, for the server ("") and for each service by its full name.

The standard servicer, with states that follow the engine's phase; Watch streams see every change. Knows no engine.
"""

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

SERVICE_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class Health:
    """The health of one server; NOT_SERVING until told otherwise."""

    def __init__(self, service_names: Sequence[str]) -> None:
        self._servicer = HealthServicer()
        self._names = ("", *service_names)
        self.is_serving = False

    async def add_to(self, server: grpc.aio.Server) -> None:
        """Serve it; before the server starts."""
        await self.show(is_serving=False)
        self.serve_on(server)

    def serve_on(self, server: grpc.aio.Server) -> None:
        """Serve it on one more server; before that one starts."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def show(self, is_serving: bool) -> None:
        """Set every name at once."""
        self.is_serving = is_serving
        states = health_pb2.HealthCheckResponse
        for name in self._names:
            await self._servicer.set(name, states.SERVING if is_serving else states.NOT_SERVING)
