"""How a request set is sent: a closed loop of clients that wait for their answers, or an open loop that does not.

Closed: each client asks again when its answer has ended, so load follows the server. Open: requests leave at their
arrival times whatever the server does, so a slow one is overrun, as it would be by the world.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from tandem.load.calls import Call
from tandem.load.workload import Demand


class Target(Protocol):
    """A server under load."""

    async def send(self, demand: Demand, call: Call, now: Callable[[], float]) -> None:
        """Ask, and note in `call` each message as it comes, how it ended, and what was counted. Raises nothing that
        the server may be the cause of."""


async def closed_loop(target: Target, demands: Sequence[Demand], num_clients: int) -> list[Call]:
    """The calls, in the order of the set."""
    now = _clock()
    calls: list[Call] = []
    rest = iter(demands)

    async def client() -> None:
        for demand in rest:
            await _ask(target, demand, now(), calls, now)

    async with asyncio.TaskGroup() as clients:
        for _ in range(min(num_clients, len(demands))):
            clients.create_task(client())
    return calls


async def open_loop(target: Target, demands: Sequence[Demand]) -> list[Call]:
    """The calls, in the order in which they left."""
    now = _clock()
    calls: list[Call] = []
    async with asyncio.TaskGroup() as clients:
        for demand in sorted(demands, key=lambda demand: demand.arrival_s):
            await asyncio.sleep(demand.arrival_s - now())
            clients.create_task(_ask(target, demand, demand.arrival_s, calls, now))
    return calls


def _clock() -> Callable[[], float]:
    start = time.perf_counter()
    return lambda: time.perf_counter() - start


async def _ask(target: Target, demand: Demand, due: float, calls: list[Call], now: Callable[[], float]) -> None:
    call = Call(due=due, sent=now())
    calls.append(call)
    await target.send(demand, call, now)
    call.ended = now()
