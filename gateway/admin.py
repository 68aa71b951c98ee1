"""The admin listener: ControlService, health and reflection, on an address of its own.

Apart from the port that clients of generation use, so that it can be kept from them, and so that an operator gets
through when they have taken every stream. Knows the servicer's methods by descriptor only.
"""

import time
from pathlib import Path

import grpc
import structlog
from msgspec.structs import replace

from gateway import transport
from gateway.accounts import Accounts
from gateway.control import ControlServicer
from gateway.door import Door, OnRefused
from gateway.guard import Guard
from gateway.health import SERVICE_NAME as HEALTH_NAME
from gateway.health import Health
from gateway.reflection import add_reflection
from services.runtime.settings import LOCAL, GatewaySettings
from tandem.v1 import control_pb2

log = structlog.get_logger()

SERVICE = control_pb2.DESCRIPTOR.services_by_name["ControlService"]
# Addresses that nobody on another machine reaches.
PRIVATE = ("127.", "localhost:", "[::1]:", "unix:")


class Admin:
    """One gateway's admin listener; `address` is empty while there is none."""

    def __init__(self, settings: GatewaySettings, run_dir: str, on_refused: OnRefused) -> None:
        self._settings = settings
        self._listen = _listen_address(settings, run_dir)
        is_asked = settings.admin_listen != LOCAL
        own = replace(settings, tokens=settings.admin_tokens if is_asked else "")
        self._door = Door(own, time.monotonic, on_refused)
        self._grpc: grpc.aio.Server | None = None
        self.address = ""

    async def start(self, control: ControlServicer, health: Health, accounts: Accounts) -> None:
        """Take the address and begin to answer; RuntimeError when it is taken. Nothing where none is wanted."""
        if not self._listen:
            return
        settings = self._settings
        self._grpc = grpc.aio.server(interceptors=self._door.interceptors, options=transport.options(settings))
        Guard(settings.max_message_bytes, accounts).add_service(self._grpc, SERVICE, control)
        health.serve_on(self._grpc)
        add_reflection(self._grpc, (SERVICE.full_name, HEALTH_NAME))
        (self.address,) = transport.listen(self._grpc, [self._listen], settings)
        await self._grpc.start()
        log.info("admin.listening", address=self.address)
        if not self._door.interceptors and not self.address.startswith(PRIVATE):
            log.warning("admin.open", address=self.address, why="gateway.admin_tokens is empty")

    def look_again(self) -> None:
        """Read the file of tokens again if it has changed."""
        self._door.look_again()

    async def stop(self, grace_s: float) -> None:
        """Close it; streams that go on are cut after grace_s."""
        if self._grpc is not None:
            await self._grpc.stop(grace_s)


def _listen_address(settings: GatewaySettings, run_dir: str) -> str:
    """Where to listen: LOCAL is a socket in the run directory, which is private to the user."""
    if settings.admin_listen != LOCAL:
        return settings.admin_listen
    return f"unix:{Path(run_dir) / f'admin-{settings.name}'}" if run_dir else ""
