"""Who calls: the bearer tokens that are known, each with its tenant and its bounds.

The door (door.py) holds every call against a Keyring before anything else sees it, and leaves the Caller where the
call's own task finds it. Without tokens every call is ANYONE's. Knows no server; time comes from a clock that is passed
in. Invariant: a token is compared with every entry in constant time, and never kept.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from gateway.errors import CallError, Violation
from services.runtime.access import AccessToken
from tandem.v1 import errors_pb2 as reasons

HEADER = "authorization"
SCHEME = "bearer"
MINUTE_S = 60.0


class Meter:
    """What one token has used of its bounds. `clock`: monotonic seconds.

    Calls a minute are a bucket that refills steadily: a minute's worth may begin at once, the next as time passes.
    """

    def __init__(self, token: AccessToken, clock: Callable[[], float]) -> None:
        self._token = token
        self._clock = clock
        self._num_open = 0
        self._left = float(token.max_calls_per_minute)
        self._then = clock()

    @contextmanager
    def call(self) -> Iterator[None]:
        """One call, from its begin to its end; raises RATE_LIMITED when it is one too many."""
        self._check()
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1

    def _check(self) -> None:
        name, most = self._token.name, self._token.max_calls
        if most and self._num_open >= most:
            raise _limited(f"{most} calls of {name} are open", name, None)
        a_minute = self._token.max_calls_per_minute
        if not a_minute:
            return
        now = self._clock()
        self._left = min(a_minute, self._left + (now - self._then) * a_minute / MINUTE_S)
        self._then = now
        if self._left < 1.0:
            wait_s = (1.0 - self._left) * MINUTE_S / a_minute
            raise _limited(f"{name} may begin {a_minute} calls a minute", name, wait_s)
        self._left -= 1.0


@dataclass(frozen=True)
class Caller:
    """Whose call it is. An empty tenant: whichever the request names."""

    name: str = ""
    tenant: str = ""
    meter: Meter | None = None

    @contextmanager
    def call(self) -> Iterator[None]:
        """One call of this caller; raises CallError when it has no room for it."""
        if self.meter is None:
            yield
            return
        with self.meter.call():
            yield

    def tenant_for(self, wanted: str) -> str:
        """The tenant of a call that names `wanted`, or none; raises PERMISSION_DENIED for somebody else's."""
        if not self.tenant or wanted in ("", self.tenant):
            return self.tenant or wanted
        why = f"must be absent or {self.tenant!r}, the tenant of this token"
        raise CallError(
            reasons.ERROR_REASON_PERMISSION_DENIED, f"tenant: {why}", violations=(Violation("tenant", why),)
        )


ANYONE = Caller()
_caller: ContextVar[Caller] = ContextVar("caller", default=ANYONE)


def caller() -> Caller:
    """Whose call the running task serves."""
    return _caller.get()


def serve_for(owner: Caller) -> None:
    """From now on the running task serves a call of this caller."""
    _caller.set(owner)


class Keyring:
    """The tokens that open the door."""

    def __init__(self, tokens: Sequence[AccessToken], clock: Callable[[], float]) -> None:
        self._clock = clock
        self._callers: dict[AccessToken, tuple[bytes, Caller]] = {}
        self.replace(tokens)

    def replace(self, tokens: Sequence[AccessToken]) -> None:
        """From now on these; an entry that stays as it was keeps what it has used."""
        self._callers = {token: self._callers.get(token) or self._new(token) for token in tokens}

    def caller(self, metadata: Iterable[tuple[str, Any]]) -> Caller:
        """Whose token a call shows; raises UNAUTHENTICATED."""
        shown = [value for key, value in metadata if key == HEADER]
        if not shown:
            raise _unknown("the call shows no token: authorization: Bearer ...")
        scheme, _, token = str(shown[0]).partition(" ")
        if len(shown) > 1 or scheme.lower() != SCHEME:
            raise _unknown("authorization must be one bearer token")
        digest = hashlib.sha256(token.strip().encode()).digest()
        found = ANYONE
        # Every entry is compared, to its last byte, so that time tells nothing.
        for known, owner in self._callers.values():
            if hmac.compare_digest(known, digest):
                found = owner
        if found is ANYONE:
            raise _unknown("the token is not known here")
        return found

    def _new(self, token: AccessToken) -> tuple[bytes, Caller]:
        return bytes.fromhex(token.sha256), Caller(token.name, token.tenant, Meter(token, self._clock))


def _unknown(why: str) -> CallError:
    return CallError(reasons.ERROR_REASON_UNAUTHENTICATED, why)


def _limited(why: str, name: str, retry_after_s: float | None) -> CallError:
    return CallError(reasons.ERROR_REASON_RATE_LIMITED, why, quota=f"token:{name}", retry_after_s=retry_after_s)
