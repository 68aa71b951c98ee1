"""The transport: what gRPC is told about sizes, pings and certificates, and the addresses it listens on.

TLS is for host:port addresses; a unix socket is guarded by the permissions of its folder. A certificate that is renewed
on disk is shown from the next connection on. Knows no call and no service. Invariant: an address that somebody else
listens on is an error, never shared and never taken over.
"""

import contextlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import grpc
import structlog

from services.runtime.settings import GatewaySettings

log = structlog.get_logger()

UNIX = "unix:"
# Calls that may wait for the event loop to look at them, which then takes or refuses each.
MAX_PENDING_CALLS = 16384
# The transport's own bound is larger by this factor: a message between the two gets a status of ours (guard.py), which
# says more than the transport's.
OVERSIZE = 2


def options(settings: GatewaySettings) -> Sequence[tuple[str, int]]:
    """The channel arguments of a server."""
    return (
        # A port that is taken must fail, not be shared in silence.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", OVERSIZE * settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        # By default core resets calls at random, without a word, once a thousand wait for the event loop.
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
        # Soft and hard bound are one, or core refuses at random what lies between.
        ("grpc.max_metadata_size", settings.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", settings.max_metadata_bytes),
        # Clients may ping through an hour without a token, at a decent rate; dead ones are found by our own pings.
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(settings.min_ping_s)),
        ("grpc.http2.max_ping_strikes", settings.max_ping_strikes),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", _ms(settings.keepalive_s)),
        ("grpc.keepalive_timeout_ms", _ms(settings.keepalive_timeout_s)),
    )


def listen(server: grpc.aio.Server, addresses: Sequence[str], settings: GatewaySettings) -> list[str]:
    """Take every address; those that were bound, with the ports that were picked. Raises RuntimeError or OSError."""
    bound = []
    for address in addresses:
        if address.startswith(UNIX):
            _check_free(Path(address.removeprefix(UNIX)))
            server.add_insecure_port(address)
            bound.append(address)
            continue
        # Credentials of its own for each: gRPC hands the first certificates to one port alone.
        credentials = _credentials(settings)
        port = (
            server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        )
        host, _, asked = address.rpartition(":")
        bound.append(f"{host}:{port}" if asked == "0" else address)
    return bound


class _Certificates:
    """The files of the settings, read again when one of them has changed."""

    def __init__(self, settings: GatewaySettings) -> None:
        names = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        self._paths = [Path(name) for name in names if name]
        self._seen = self._times()

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Raises OSError when one cannot be read."""
        chain, key, *client_ca = (path.read_bytes() for path in self._paths)
        return grpc.ssl_server_certificate_configuration([(key, chain)], client_ca[0] if client_ca else None)

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """What gRPC asks at each handshake: the new files, None while they are the same or unreadable."""
        try:
            times = self._times()
            if times == self._seen:
                return None
            configuration = self.read()
        except OSError as error:
            log.error("tls.unreadable", error=str(error))
            return None
        self._seen = times
        log.info("tls.renewed")
        return configuration

    def _times(self) -> list[int]:
        return [path.stat().st_mtime_ns for path in self._paths]


def _credentials(settings: GatewaySettings) -> grpc.ServerCredentials | None:
    if not settings.tls_certificate:
        return None
    certificates = _Certificates(settings)
    return grpc.dynamic_ssl_server_credentials(
        certificates.read(),
        certificates.renewed,  # type: ignore[arg-type]  # None means: as before; the stub does not know
        require_client_authentication=bool(settings.tls_client_ca),
    )


def _check_free(path: Path) -> None:
    """gRPC takes over a socket file whatever it is; only one that a dead server left behind is free."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(ConnectionRefusedError):
        probe.connect(os.fspath(path))
        raise RuntimeError(f"somebody listens on {UNIX}{path}")


def _ms(seconds: float) -> int:
    return max(round(seconds * 1000), 1)
