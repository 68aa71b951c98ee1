"""The sockets under the links: their zmq contexts, the keys of the process, and what becomes of connections.

Links over tcp are encrypted (CURVE) and take in only peers that know the server's keys, once `secure` was called; those
over ipc are guarded by the permissions of their folder. Knows no message. Invariant: bytes that are no peer's reach
nobody, on either.

All share one context, save the senders over tcp, each of which has its own. The thread of a context moves the frames of
its sockets, and also asks the name server where a receiver is: one that does not answer (the receiver's container is
gone, and its name with it) must hold up the links to that receiver alone, not every link of the process, heartbeats
included. Over ipc nobody is asked, and every thread more is one more to wake.
"""

import secrets
import threading
import time
from weakref import WeakSet

import zmq
from zmq.utils.monitor import recv_monitor_message

RECONNECT_MAX_MS = 160  # the longest a sender waits before it looks for its receiver again
FREE_S = 0.5  # how long a context may take to free its sockets; beyond that its thread waits for a name server
REFUSALS = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class _Process:
    """What the sockets of this process share."""

    def __init__(self) -> None:
        self.keys: tuple[bytes, bytes] | None = None
        self.told: WeakSet[zmq.Socket[bytes]] = WeakSet()  # whose connections are told of
        self.senders: WeakSet[zmq.Context[zmq.Socket[bytes]]] = WeakSet()  # of the senders over tcp


_process = _Process()


def new_keys() -> tuple[bytes, bytes]:
    """Keys for the links of one server: public and secret half, as text (Z85). Whoever has the public one may call."""
    return zmq.curve_keypair()


def secure(keys: tuple[bytes, bytes] | None) -> None:
    """From here on the links of this process over tcp speak only with processes that have these keys; None: plain."""
    _process.keys = keys


def finish(flush_s: float) -> None:
    """The last thing a process does with its links: wait at most flush_s for what is unsent, then free every socket.

    A sender that waits for a name server is not waited for; its thread ends with the process.
    """
    for receiver in list(_process.told):
        if not receiver.closed:
            receiver.disable_monitor()
    linger = int(flush_s * 1000)
    contexts = [zmq.Context.instance(), *_process.senders]
    closing = [threading.Thread(target=each.destroy, args=(linger,), daemon=True) for each in contexts]
    for thread in closing:
        thread.start()
    deadline = time.monotonic() + flush_s + FREE_S
    for thread in closing:
        thread.join(max(0.0, deadline - time.monotonic()))
    _process.senders.clear()


def puller(address: str, bound: int) -> "zmq.Socket[bytes]":
    """A receiving socket that is to be bound to this address; it holds so many frames."""
    opened = _socket(zmq.PULL, zmq.Context.instance())
    opened.set(zmq.RCVHWM, bound)
    # Without a domain zmq takes the peers of its first protocol at their word, that is, any bytes at all.
    opened.set(zmq.ZAP_DOMAIN, b"tandem")
    if _process.keys and address.startswith("tcp:"):
        opened.set(zmq.CURVE_SERVER, 1)
        opened.set(zmq.CURVE_SECRETKEY, _process.keys[1])
    return opened


def pusher(address: str, high_water_mark: int, reconnect_ms: int) -> "zmq.Socket[bytes]":
    """A sending socket, not yet connected to this address; it holds so many unsent frames. `release` closes it.

    reconnect_ms: how long it waits before it looks for its receiver again, at first; then ever longer.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    if address.startswith("tcp:"):
        context = zmq.Context()
        _process.senders.add(context)
    opened = _socket(zmq.PUSH, context)
    opened.set(zmq.SNDHWM, high_water_mark)
    opened.set(zmq.RECONNECT_IVL, reconnect_ms)
    opened.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    return opened


def connect(sender: "zmq.Socket[bytes]", address: str) -> None:
    """Connect a sending socket, with the keys where there are any."""
    if _process.keys and address.startswith("tcp:"):
        public, secret = zmq.curve_keypair()
        sender.set(zmq.CURVE_SERVERKEY, _process.keys[0])
        sender.set(zmq.CURVE_PUBLICKEY, public)
        sender.set(zmq.CURVE_SECRETKEY, secret)
    sender.connect(address)


def release(sender: "zmq.Socket[bytes]") -> None:
    """Close a sending socket with what is unsent, and in the background a context of its own; idempotent."""
    sender.close(linger=0)
    if sender.context in _process.senders:
        _process.senders.discard(sender.context)  # two threads may not end one context
        threading.Thread(target=sender.context.term, daemon=True).start()


def events(receiver: "zmq.Socket[bytes]") -> "zmq.Socket[bytes]":
    """What `lost` reads: the fate of a receiving socket's connections; `close` closes both.

    zmq's own thread waits for whoever reads this: so it has no bound, and is never closed before it is told no more.
    """
    address = f"inproc://events-{secrets.token_hex(8)}"
    receiver.monitor(address, REFUSALS | zmq.EVENT_DISCONNECTED)
    opened = _socket(zmq.PAIR, zmq.Context.instance())
    opened.set(zmq.RCVHWM, 0)
    opened.connect(address)
    _process.told.add(receiver)
    return opened


def close(receiver: "zmq.Socket[bytes]", told: "zmq.Socket[bytes]") -> None:
    """Close a receiving socket and what `events` made for it; idempotent."""
    if not receiver.closed:
        receiver.disable_monitor()
    receiver.close(linger=0)
    told.close(linger=0)


def lost(told: "zmq.Socket[bytes]") -> tuple[int, int]:
    """Connections that ended since the last look, and handshakes that failed (each of which ends one too)."""
    seen = []
    while not told.closed and told.poll(0):
        seen.append(recv_monitor_message(told)["event"])
    num_refused = sum(bool(event & REFUSALS) for event in seen)
    return len(seen) - num_refused, num_refused


def _socket(kind: int, context: "zmq.Context[zmq.Socket[bytes]]") -> "zmq.Socket[bytes]":
    opened = context.socket(kind)
    # zmq's own default is to wait for ever: a socket that was dropped, not closed, would then hang `finish`.
    opened.set(zmq.LINGER, 0)
    return opened
