"""TCP ports of this machine that nobody listens on at the moment."""

import socket
from contextlib import ExitStack, suppress

HOST = "127.0.0.1"
# Below the range that the kernel hands out by itself.
FIRST, LAST = 20_000, 32_000


def free_port() -> int:
    """One of them."""
    with socket.create_server((HOST, 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def free_ports(count: int) -> int:
    """The first of so many in a row."""
    for first in range(FIRST, LAST, count):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server((HOST, port)))
            return first
    raise AssertionError("no ports are free")
