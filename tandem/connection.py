"""How a client reaches its server: TLS, the bearer token, and what both kinds of channel are told.

    Client("llm.example.org:443", tls=Tls(ca="ca.pem"), token="...")

Without tls the connection is plain: for loopback, unix sockets and networks that are trusted. An address may name
several servers; calls then go round among those that are healthy, as service_config.json says. Knows no call.
"""

import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import grpc

DEFAULT_ADDRESS = "127.0.0.1:50051"
# What stands in for a token that is not passed.
TOKEN_VARIABLE = "TANDEM_TOKEN"
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A server that is gone without a word is noticed during a long generation; a server of ours allows such pings.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # The clients here try again by themselves (retries.py), and know more about when.
    ("grpc.enable_retries", 0),
)
# How gRPC clients of any language treat several servers; a file, so that they can read it too.
SERVICE_CONFIG = Path(__file__).with_name("service_config.json")
# What a name resolver may find several addresses for.
_RESOLVED = ("dns:", "ipv4:", "ipv6:")

Options = tuple[tuple[str, str | int], ...]
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Tls:
    """Files in PEM form. ca: who may vouch for the server, None = whom this machine trusts; certificate and key: who
    this client is, where the server asks. server_name: the name in the server's certificate, where it is not the
    address's."""

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """What gRPC needs of it. Raises OSError for a file that cannot be read, ValueError for half a pair."""
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a client's certificate and its key go together")
        return grpc.ssl_channel_credentials(_read(self.ca), _read(self.key), _read(self.certificate))

    def options(self) -> Options:
        """The channel arguments that go with it."""
        return () if self.server_name is None else (("grpc.ssl_target_name_override", self.server_name),)


@dataclass(frozen=True)
class Connection:
    """Everything about one channel but its calls."""

    address: str
    credentials: grpc.ChannelCredentials | None
    options: Options
    metadata: Metadata  # goes with every call


def connection(address: str, tls: Tls | grpc.ChannelCredentials | None, token: str | None) -> Connection:
    """The connection that a client was asked for. Without a token, TANDEM_TOKEN of the environment counts."""
    options: Options = CHANNEL_OPTIONS
    credentials: grpc.ChannelCredentials | None
    if isinstance(tls, Tls):
        credentials, options = tls.credentials(), (*options, *tls.options())
    else:
        credentials = tls
    target = _target(address)
    if target.startswith(_RESOLVED):
        options = (*options, ("grpc.service_config", SERVICE_CONFIG.read_text()))
    shown = os.environ.get(TOKEN_VARIABLE) if token is None else token
    metadata = (("authorization", f"Bearer {shown}"),) if shown else ()
    return Connection(target, credentials, options, metadata)


def _target(address: str) -> str:
    """The address as gRPC resolves it; several IP addresses get the scheme of their kind. Raises ValueError."""
    if "," not in address or address.startswith(_RESOLVED):
        return address
    parts = [part.strip() for part in address.split(",")]
    try:
        (version,) = {ip_address(part.rpartition(":")[0].strip("[]")).version for part in parts}
    except ValueError as error:
        message = f"{address!r}: several servers are IP addresses of one kind, or one name: dns:///host:port"
        raise ValueError(message) from error
    return f"ipv{version}:{','.join(parts)}"


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()
