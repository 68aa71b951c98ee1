"""Loops and duels over a server that is a few lines: who is asked what, when, and how many at once."""

import asyncio
from collections.abc import Callable, Sequence

from tandem.load.calls import OK, Call
from tandem.load.duel import Level, fight
from tandem.load.loops import closed_loop, open_loop
from tandem.load.workload import Demand


class Server:
    """Answers after some turns of the loop, and remembers who was there together."""

    def __init__(self) -> None:
        self.seen: list[Demand] = []
        self.num_open = self.most_open = 0
        self.gate: asyncio.Event | None = None
        self.is_full = asyncio.Event()  # all that are expected have come

    async def send(self, demand: Demand, call: Call, now: Callable[[], float]) -> None:
        self.seen.append(demand)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        if self.num_open == len(DEMANDS):
            self.is_full.set()
        if self.gate is not None:
            await self.gate.wait()
        for _ in range(3):
            await asyncio.sleep(0)
            call.bring(now(), 1)
        call.num_output_tokens, call.status = 3, OK
        self.num_open -= 1


DEMANDS = [Demand(f"prompt {number}", 3) for number in range(20)]


async def test_a_closed_loop_keeps_its_clients_busy_and_no_more() -> None:
    server = Server()
    calls = await closed_loop(server, DEMANDS, 4)
    assert server.seen == DEMANDS and server.most_open == 4
    assert len(calls) == 20 and all(call.is_ok and call.ended >= call.times[-1] >= call.sent for call in calls)


async def test_a_closed_loop_has_no_more_clients_than_requests() -> None:
    server = Server()
    assert len(await closed_loop(server, DEMANDS[:2], 8)) == 2 and server.most_open == 2


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    server = Server()
    server.gate = asyncio.Event()
    running = asyncio.create_task(open_loop(server, DEMANDS))
    await server.is_full.wait()  # nobody has had an answer
    server.gate.set()
    assert len(await running) == 20


async def test_an_open_loop_goes_by_the_times_of_arrival() -> None:
    server = Server()
    late, early = Demand("late", 3, arrival_s=0.02), Demand("early", 3, arrival_s=0.001)
    calls = await open_loop(server, [late, early])
    assert [demand.prompt for demand in server.seen] == ["early", "late"]
    assert [call.due for call in calls] == [0.001, 0.02] and all(call.sent >= call.due for call in calls)


async def test_every_server_gets_the_same_set_in_turns_and_each_turn_another() -> None:
    one, other = Server(), Server()
    order: list[str] = []

    class Noted(Server):
        def __init__(self, name: str, inner: Server) -> None:
            super().__init__()
            self.name, self.inner = name, inner

        async def send(self, demand: Demand, call: Call, now: Callable[[], float]) -> None:
            order.append(self.name)
            await self.inner.send(demand, call, now)

    def demands(turn: int) -> Sequence[Demand]:
        return [Demand(f"turn {turn}", 3)]

    levels = [Level("c=1", demands, 1), Level("open", demands, None)]
    servers = {"one": Noted("one", one), "other": Noted("other", other)}
    bouts = [bout async for bout in fight(servers, levels, num_turns=2)]
    assert order == ["one", "other", "one", "other"] * 2
    assert [(bout.level, bout.target, len(bout.runs)) for bout in bouts] == [
        ("c=1", "one", 2),
        ("c=1", "other", 2),
        ("open", "one", 2),
        ("open", "other", 2),
    ]
    assert one.seen == other.seen == [Demand("turn 0", 3), Demand("turn 1", 3)] * 2
