"""The door: every call is asked for its token before anything else sees it, and refused in one place.

Door reads the tokens' file of the settings, and again when it has changed; Doorkeeper is what gRPC asks about a call.
Invariants: without a file there is no door; with one, what is not exempt by name is asked; a file that has become
unreadable changes nothing.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from gateway import access, errors, reflection
from gateway.access import Keyring
from gateway.errors import CallError
from gateway.health import SERVICE_NAME as HEALTH_NAME
from services.runtime.access import load
from services.runtime.settings import GatewaySettings, SettingsError

log = structlog.get_logger()

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]

# Told of each call that is turned away: its path, and why.
OnRefused = Callable[[str, CallError], None]
# Refused calls that leave a line in the log each second; a flood of wrong tokens must not become one of lines.
MAX_LOGGED_PER_S = 10
# The services that the settings may exempt, by the settings' word for them.
EXEMPT = {"health": (HEALTH_NAME,), "reflection": reflection.SERVICE_NAMES}


class Doorkeeper(grpc.aio.ServerInterceptor):
    """Asks every call for its token. tokenless: full names of the services that need none."""

    def __init__(
        self, keyring: Keyring, tokenless: Iterable[str], clock: Callable[[], float], on_refused: OnRefused
    ) -> None:
        self._keyring = keyring
        self._tokenless = tuple(f"/{name}/" for name in tokenless)
        self._clock = clock
        self._on_refused = on_refused
        self._second = 0
        self._num_logged = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """The method's own handler, or one that refuses."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        # No handler: no such method, which is answered alike to everybody.
        if handler is None or method.startswith(self._tokenless):
            return handler
        try:
            access.serve_for(self._keyring.caller(handler_call_details.invocation_metadata or ()))
        except CallError as error:
            return self._refusing(handler, method, error)
        return handler

    def _refusing(self, handler: "Handler", method: str, error: CallError) -> "Handler":
        async def refuse(_request: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
            self._log(method, context.peer(), error)
            self._on_refused(method, error)
            await context.abort_with_status(errors.status(error))

        if handler.request_streaming:
            if handler.response_streaming:
                return grpc.stream_stream_rpc_method_handler(refuse)
            return grpc.stream_unary_rpc_method_handler(refuse)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(refuse)
        return grpc.unary_unary_rpc_method_handler(refuse)

    def _log(self, method: str, peer: str, error: CallError) -> None:
        second = int(self._clock())
        if second != self._second:
            self._second, self._num_logged = second, 0
        self._num_logged += 1
        if self._num_logged <= MAX_LOGGED_PER_S:
            log.warning("call.refused", method=method, peer=peer, reason=error.reason_name, why=error.message)


class Door:
    """The door of one server, as its settings want it. Raises SettingsError for a file of tokens that cannot be."""

    def __init__(self, settings: GatewaySettings, clock: Callable[[], float], on_refused: OnRefused) -> None:
        self._path = Path(settings.tokens) if settings.tokens else None
        self.interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
        if self._path is None:
            return
        self._changed = self._mtime(self._path)
        self._keyring = Keyring(load(self._path), clock)
        tokenless = [name for word in settings.tokenless for name in EXEMPT[word]]
        self.interceptors = (Doorkeeper(self._keyring, tokenless, clock, on_refused),)

    def look_again(self) -> None:
        """Read the file again if it has changed."""
        if self._path is None:
            return
        changed = self._mtime(self._path)
        if changed == self._changed:
            return
        self._changed = changed
        try:
            tokens = load(self._path)
        except SettingsError as error:
            log.error("tokens.unreadable", why=str(error))
            return
        self._keyring.replace(tokens)
        log.info("tokens.renewed", num_tokens=len(tokens))

    @staticmethod
    def _mtime(path: Path) -> int:
        try:
            return path.stat().st_mtime_ns
        except OSError:
            return 0
