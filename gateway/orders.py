"""Orders to the scheduler, and its replies: each order is a Control with a number of its own, answered once.

Knows the link's outlet; knows no gRPC and not what an order means. Invariants: at most MAX_PENDING orders wait for
their reply; one that is not answered in time fails, and a reply that nobody waits for is dropped.
"""

import asyncio

from gateway.errors import CallError
from services.wire.link import LinkFull, Outlet
from services.wire.messages import Control, ControlReply, ControlVerb, SubmitMessage
from tandem.v1 import errors_pb2 as reasons

MAX_PENDING = 64


class Orders:
    """The orders of one gateway. timeout_s: how long the scheduler may take to answer."""

    def __init__(self, gateway: str, submits: Outlet[SubmitMessage], timeout_s: float) -> None:
        self._gateway = gateway
        self._submits = submits
        self._timeout_s = timeout_s
        self._last_number = 0
        self._pending: dict[int, asyncio.Future[ControlReply]] = {}

    async def give(self, verb: ControlVerb, argument: str = "") -> ControlReply:
        """Order and wait until it is done; raises CallError."""
        if len(self._pending) >= MAX_PENDING:
            raise CallError(reasons.ERROR_REASON_TOO_MANY_CALLS, f"{MAX_PENDING} orders wait for the scheduler")
        self._last_number += 1
        number = self._last_number
        answered: asyncio.Future[ControlReply] = asyncio.get_running_loop().create_future()
        self._pending[number] = answered
        try:
            self._submits.send(Control(self._gateway, number, verb, argument))
            return await asyncio.wait_for(answered, self._timeout_s)
        except (LinkFull, TimeoutError) as error:
            raise CallError(reasons.ERROR_REASON_NOT_READY, "the scheduler does not answer") from error
        finally:
            del self._pending[number]

    def answered(self, reply: ControlReply) -> None:
        """The scheduler has carried out an order."""
        waiting = self._pending.get(reply.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)
