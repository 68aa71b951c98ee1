"""Links over ZeroMQ: the only package that imports zmq. Ends in ends.py, the sockets under them in sockets.py."""

from services.wire.links.ends import (
    Poller,
    Waker,
    ZmqAsyncInlet,
    ZmqInlet,
    ZmqOutlet,
    ZmqRenewableOutlet,
    open_async_inlet,
    open_inlet,
    open_outlet,
    open_renewable_outlet,
)
from services.wire.links.sockets import finish, new_keys, secure

__all__ = [
    "Poller",
    "Waker",
    "ZmqAsyncInlet",
    "ZmqInlet",
    "ZmqOutlet",
    "ZmqRenewableOutlet",
    "finish",
    "new_keys",
    "open_async_inlet",
    "open_inlet",
    "open_outlet",
    "open_renewable_outlet",
    "secure",
]
