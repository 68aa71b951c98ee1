"""Whoever goes, however and whenever, gives everything back: no sequence waits or runs, every block is free."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import psutil
import pytest

from tandem import AsyncClient, Generation, TandemError, errors
from tandem.operators import Operator
from tests.e2e.serving import Serving

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = [7] * 100
FULL = 512
Leave = Callable[[AsyncClient], Awaitable[None]]


@contextmanager
def gives_everything_back(echo: Serving) -> Iterator[None]:
    """Whatever the block does, afterwards the engine is as it was: idle, and with every block."""
    yield
    state = echo.idle(echo.position())
    assert state["num_free_blocks"] == state["num_blocks"]


async def while_waiting(client: AsyncClient) -> None:
    """Four run; the fifth and sixth wait for a run slot, and leave the queue."""
    running = [client.stream_generate([i], max_tokens=300, ignore_eos=True) for i in range(4)]
    for stream in running:
        await anext(stream)
    for stream in [client.stream_generate([9], max_tokens=300) for _ in range(2)]:
        await asyncio.sleep(0.02)
        stream.close()
    for stream in running:
        stream.close()


async def during_prefill(client: AsyncClient) -> None:
    """A prompt of many chunks, left before its first token."""
    stream = client.stream_generate([7] * 500, max_tokens=5)
    await asyncio.sleep(0.01)
    stream.close()


async def after_three_tokens(client: AsyncClient) -> None:
    stream = client.stream_generate(LONG, max_tokens=400, ignore_eos=True)
    for _ in range(3):
        await anext(stream)
    stream.close()


async def unary(client: AsyncClient) -> None:
    call = asyncio.ensure_future(client.generate(LONG, max_tokens=400, ignore_eos=True))
    await asyncio.sleep(0.05)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def at_the_deadline(client: AsyncClient) -> None:
    with pytest.raises(errors.DeadlineExceeded):
        await client.generate(LONG, max_tokens=400, ignore_eos=True, timeout_s=0.1)


async def with_the_channel(client: AsyncClient) -> None:
    streams = [client.stream_generate(LONG, max_tokens=400, ignore_eos=True) for _ in range(3)]
    for stream in streams:
        await anext(stream)
    await client.close()


async def several_sequences(client: AsyncClient) -> None:
    stream = client.stream_generate(LONG, max_tokens=300, ignore_eos=True, n=3)
    await anext(stream)
    stream.close()


WAYS = [while_waiting, during_prefill, after_three_tokens, unary, at_the_deadline, with_the_channel, several_sequences]


@pytest.mark.parametrize("leave", WAYS, ids=lambda leave: leave.__name__)
async def test_a_client_that_leaves_gives_everything_back(echo: Serving, leave: Leave) -> None:
    with gives_everything_back(echo):
        async with AsyncClient(echo.address) as client:
            await leave(client)
    async with AsyncClient(echo.address) as client:
        whole = await client.generate([5] * (FULL - 8), max_tokens=8, ignore_eos=True)
        assert whole.usage.total_tokens == FULL, "a request as large as the pool finds room"


async def test_a_socket_that_is_cut_gives_everything_back(echo: Serving) -> None:
    """Between client and server stands a forwarder that is cut with a reset, as a crashed machine would look."""
    host, port = echo.address.split(":")
    with gives_everything_back(echo):
        async with forwarded(host, int(port)) as (address, cut), AsyncClient(address) as client:
            stream = client.stream_generate(LONG, max_tokens=400, ignore_eos=True)
            await anext(stream)
            cut()
            with pytest.raises(TandemError):
                async for _ in stream:
                    pass


@asynccontextmanager
async def forwarded(host: str, port: int) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """An address that leads to another, and what cuts every connection through it, unsaid."""
    ends: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, port)
        ends.extend((writer, back))
        await asyncio.gather(carry(reader, back), carry(there, writer))

    def cut() -> None:
        while ends:
            end = ends.pop()
            end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.transport.abort()

    async with await asyncio.start_server(joined, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", cut


async def test_an_id_is_used_again_while_its_cancel_is_on_the_way(echo: Serving) -> None:
    with gives_everything_back(echo):
        async with AsyncClient(echo.address) as client:
            for number in range(40):
                first = client.stream_generate(LONG, max_tokens=400, ignore_eos=True, request_id="x")
                if number % 2:
                    await anext(first)
                first.close()
                second = await client.generate([5, 6], max_tokens=4, request_id="x", return_token_ids=True)
                assert second.completions[0].token_ids == (5, 6, 5, 6)


async def test_a_live_id_is_refused_and_the_first_call_goes_on(echo: Serving) -> None:
    async with AsyncClient(echo.address) as client:
        first = client.stream_generate(LONG, max_tokens=100, ignore_eos=True, request_id="mine")
        await anext(first)
        with pytest.raises(errors.DuplicateRequestId):
            await client.generate([5], request_id="mine")
        assert [chunk async for chunk in first][-1].usage is not None


async def test_fifteen_hundred_calls_at_once_cost_no_socket_each(echo: Serving) -> None:
    processes = echo.process.services().values()
    for process in processes:
        process.rlimit(psutil.RLIMIT_NOFILE, (1024, 1024))
    clients = [AsyncClient(echo.address) for _ in range(8)]
    await asyncio.gather(*[client.model() for client in clients])
    before = [process.num_fds() for process in processes]
    with gives_everything_back(echo):
        calls = [
            asyncio.ensure_future(clients[number % 8].generate([number], max_tokens=1, return_token_ids=True))
            for number in range(1500)
        ]
        most = before
        while not all(call.done() for call in calls):
            await asyncio.sleep(0.05)
            now = [process.num_fds() for process in processes]
            most = [max(pair) for pair in zip(most, now, strict=True)]
        answers = await asyncio.gather(*calls)
    assert [answer.completions[0].token_ids for answer in answers] == [(number,) for number in range(1500)]
    assert max(after - early for after, early in zip(most, before, strict=True)) < 20
    for client in clients:
        await client.close()


async def test_two_hundred_cancels_at_once_while_nothing_is_planned(echo: Serving) -> None:
    with gives_everything_back(echo), Operator(echo.admin_address) as operator:
        async with AsyncClient(echo.address) as client:
            await asyncio.to_thread(operator.pause)
            try:
                calls = [asyncio.ensure_future(client.generate([5], max_tokens=100)) for _ in range(200)]
                loads = operator.watch_load(0.1)
                while (await asyncio.to_thread(next, loads)).num_waiting < len(calls):
                    pass
                for call in calls:
                    call.cancel()
                while (await asyncio.to_thread(next, loads)).num_waiting:
                    pass
                loads.close()
                assert all(isinstance(end, asyncio.CancelledError) for end in await ends_of(calls))
            finally:
                await asyncio.to_thread(operator.resume)


async def ends_of(calls: Sequence["asyncio.Future[Generation]"]) -> list[object]:
    return list(await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 5))
