"""Inlets on an event loop: the same for asyncio's own loop and uvloop, over ZeroMQ and in memory."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import uvloop

from services.wire.link import AsyncInlet, Outlet
from services.wire.links import open_async_inlet, open_outlet
from services.wire.memory import MemoryAsyncInlet, memory_link
from services.wire.messages import Credit, FeedbackMessage
from services.wire.topology import FEEDBACK
from tests.contract.ends import PATIENCE_S

Scene = Callable[[Outlet[FeedbackMessage], AsyncInlet[FeedbackMessage]], Coroutine[Any, Any, None]]
Stage = Callable[[Scene], None]


@pytest.fixture(params=["zmq", "memory"])
def world(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=["asyncio", "uvloop"])
def stage(request: pytest.FixtureRequest, world: str, tmp_path: Path) -> Stage:
    """Plays a scene: opens both ends on a loop of the wanted kind, runs it, and closes all."""

    async def play(scene: Scene) -> None:
        if world == "memory":
            outlet, inlet = memory_link(FEEDBACK, 4096)
            await scene(outlet, MemoryAsyncInlet(inlet))
            return
        address = f"ipc://{tmp_path}/feedback"
        with (
            closing(open_async_inlet(FEEDBACK, address)) as async_inlet,
            closing(open_outlet(FEEDBACK, address, 4096)) as sender,
        ):
            await scene(sender, async_inlet)

    def run(scene: Scene) -> None:
        loop_factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(asyncio.wait_for(play(scene), PATIENCE_S))

    return run


async def _receive(inlet: AsyncInlet[FeedbackMessage], count: int) -> list[FeedbackMessage]:
    received: list[FeedbackMessage] = []
    while len(received) < count:
        received += await inlet.receive()
    return received


def test_receive_waits_until_something_is_sent(stage: Stage) -> None:
    async def scene(outlet: Outlet[FeedbackMessage], inlet: AsyncInlet[FeedbackMessage]) -> None:
        waiting = asyncio.create_task(inlet.receive())
        await asyncio.sleep(0.02)
        assert not waiting.done()
        outlet.send(Credit("g", 1))
        assert await waiting == [Credit("g", 1)]

    stage(scene)


def test_heartbeats_do_not_end_the_waiting_but_are_heard(stage: Stage) -> None:
    async def scene(outlet: Outlet[FeedbackMessage], inlet: AsyncInlet[FeedbackMessage]) -> None:
        waiting = asyncio.create_task(inlet.receive())
        outlet.heartbeat()
        while not inlet.last_heard():  # noqa: ASYNC110 - hearing a heartbeat is no event
            await asyncio.sleep(0.001)
        assert not waiting.done()
        outlet.send(Credit("g", 1))
        assert await waiting == [Credit("g", 1)]

    stage(scene)


def test_everything_sent_in_bursts_arrives_in_order(stage: Stage) -> None:
    async def scene(outlet: Outlet[FeedbackMessage], inlet: AsyncInlet[FeedbackMessage]) -> None:
        receiving = asyncio.create_task(_receive(inlet, 3000))
        for number in range(3000):
            outlet.send(Credit("g", number))
            if number % 100 == 0:
                await asyncio.sleep(0)
        assert await receiving == [Credit("g", number) for number in range(3000)]

    stage(scene)


def test_a_cancelled_receive_loses_nothing(stage: Stage) -> None:
    async def scene(outlet: Outlet[FeedbackMessage], inlet: AsyncInlet[FeedbackMessage]) -> None:
        for number in range(20):
            waiting = asyncio.create_task(inlet.receive())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            outlet.send(Credit("g", number))
            assert await _receive(inlet, 1) == [Credit("g", number)]

    stage(scene)
