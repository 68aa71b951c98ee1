"""Everything around one gateway that is for its operators: accounts of calls, metrics, the admin listener.

One place that starts and stops it all, so that the server need not know the parts. Knows no client.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.accounts import Accounts, log_record
from gateway.admin import Admin
from gateway.control import ControlServicer, Life
from gateway.exposition import Exposition
from gateway.health import Health
from gateway.metrics import Metrics
from gateway.service import Gateway
from services.runtime.settings import GatewaySettings

if TYPE_CHECKING:
    from gateway.tracing import Tracing

# The last spans may take so long to leave; a collector that is gone must not hold a server up.
SPANS_LEAVE_S = 1.0


class Operations:
    """To be made on the loop that runs the gateway. about: settings by section and key that operators are told."""

    def __init__(self, gateway: Gateway, health: Health, run_dir: str, about: Mapping[str, str]) -> None:
        self._gateway = gateway
        self._about = about
        self._health = health
        self.metrics = Metrics(gateway, gateway.settings)
        self._admin = Admin(gateway.settings, run_dir, self.metrics.refused)
        self._exposition = Exposition(self.metrics.families, lambda: health.is_serving)
        self.accounts = Accounts(gateway.clock, [log_record, self.metrics.observe])
        self._tracing = _tracing(gateway.settings) if gateway.settings.otlp_endpoint else None
        if self._tracing is not None:
            self.accounts.observers.append(self._tracing.observe)
        self.metrics_address = ""

    @property
    def admin_address(self) -> str:
        """Where operators call; empty where they cannot."""
        return self._admin.address

    async def start(self, life: Life) -> None:
        """Take the addresses and begin to answer; OSError or RuntimeError when one is taken."""
        settings = self._gateway.settings
        if settings.metrics_listen:
            self.metrics_address = await self._exposition.start(settings.metrics_listen)
        control = ControlServicer(self._gateway, life, self.metrics.goodput, self._about)
        await self._admin.start(control, self._health, self.accounts)

    def look_again(self) -> None:
        """What has changed on disk."""
        self._admin.look_again()

    async def stop(self, grace_s: float) -> None:
        """Close everything; streams that go on are cut after grace_s."""
        await self._admin.stop(grace_s)
        await self._exposition.stop()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close, SPANS_LEAVE_S)


def _tracing(settings: GatewaySettings) -> "Tracing":
    from gateway.tracing import exporting  # noqa: PLC0415  # an extra, and heavy: only where it is wanted

    return exporting(settings)
