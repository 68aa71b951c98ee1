"""The table of links: who speaks to whom, in which union, and under which address.

The receiver of a link binds its address, the sender connects to it: the same, unless every service has a host of its
own, as in containers; then the receiver binds its port on whatever is its own. A link marked per_gateway exists once
for each gateway. Addresses are made here and nowhere else. Knows nothing of sockets, of settings or of what a message
means.
"""

import os
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from services.wire.messages import (
    FeedbackMessage,
    PlanMessage,
    ResultMessage,
    StatusMessage,
    SubmitMessage,
    TextMessage,
    TokenMessage,
)

M = TypeVar("M", bound=Struct)

# The kernel's sun_path holds 108 bytes, the closing zero included; a longer path would be cut without a word.
MAX_IPC_PATH_BYTES = 107
MAX_PORT = 65535
RECEIVER = "{receiver}"


class AddressError(Exception):
    """The settings of the links make an address that cannot be used; the text says which and why."""


@dataclass(frozen=True)
class Link(Generic[M]):
    """One arrow of the picture: its name, its union of messages (M), and the services at both ends."""

    name: str
    union: Any
    sender: str
    receiver: str
    per_gateway: bool = False


SUBMIT: Link[SubmitMessage] = Link("submit", SubmitMessage, "gateway", "scheduler")
STATUS: Link[StatusMessage] = Link("status", StatusMessage, "scheduler", "gateway", per_gateway=True)
PLAN: Link[PlanMessage] = Link("plan", PlanMessage, "scheduler", "executor")
RESULT: Link[ResultMessage] = Link("result", ResultMessage, "executor", "scheduler")
TOKENS: Link[TokenMessage] = Link("tokens", TokenMessage, "scheduler", "detokenizer")
TEXT: Link[TextMessage] = Link("text", TextMessage, "detokenizer", "gateway", per_gateway=True)
FEEDBACK: Link[FeedbackMessage] = Link("feedback", FeedbackMessage, "detokenizer", "scheduler")

LINKS: tuple[Link[Any], ...] = (SUBMIT, STATUS, PLAN, RESULT, TOKENS, TEXT, FEEDBACK)


@dataclass(frozen=True)
class Topology:
    """The addresses of every link of one server.

    host: may hold RECEIVER, which stands for the receiving service, a gateway by its name. bind: the address of a host
    that receivers bind, "*" for all of its interfaces; empty = host.
    """

    transport: Literal["ipc", "tcp"]
    run_dir: str
    host: str
    base_port: int
    gateways: tuple[str, ...]
    bind: str = ""

    def address(self, link: Link[Any], gateway: str = "") -> str:
        """Where the sender of a link connects to; `gateway` names which one of a per_gateway link.

        Raises AddressError.
        """
        return self._address(link, gateway, self.host.replace(RECEIVER, gateway or link.receiver))

    def bound_address(self, link: Link[Any], gateway: str = "") -> str:
        """Where the receiver of a link binds. Raises AddressError."""
        return self._address(link, gateway, self.bind or self.host)

    def check(self) -> None:
        """Make every address once, so that a bad one is found before any process starts. Raises AddressError."""
        for link in LINKS:
            for gateway in self.gateways if link.per_gateway else ("",):
                self.address(link, gateway)
                self.bound_address(link, gateway)

    def _address(self, link: Link[Any], gateway: str, host: str) -> str:
        endpoints = self._endpoints()
        if (link.name, gateway) not in endpoints:
            raise AddressError(f"no link {link.name} for gateway {gateway!r}; the gateways are {self.gateways}")
        if self.transport == "tcp":
            return self._tcp_address(host, endpoints.index((link.name, gateway)))
        return self._ipc_address(f"{link.name}-{gateway}" if link.per_gateway else link.name)

    def _endpoints(self) -> list[tuple[str, str]]:
        """Every link end that is bound, in the order of the TCP ports."""
        return [(link.name, gateway) for link in LINKS for gateway in (self.gateways if link.per_gateway else ("",))]

    def _tcp_address(self, host: str, index: int) -> str:
        port = self.base_port + index
        if RECEIVER in host:
            raise AddressError(f"links.host {host}: receivers need an address to bind, links.bind")
        if not 0 < port <= MAX_PORT:
            raise AddressError(f"links.base_port {self.base_port}: a link would get port {port}")
        return f"tcp://{host}:{port}"

    def _ipc_address(self, name: str) -> str:
        path = os.path.join(self.run_dir, name)
        size = len(os.fsencode(path))
        if size > MAX_IPC_PATH_BYTES:
            raise AddressError(
                f"{path} has {size} bytes, a socket path may have {MAX_IPC_PATH_BYTES}: choose a shorter links.run_dir"
            )
        return f"ipc://{path}"
