"""What is understood of a server of completions: streams of events, totals, and every way to fail."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tandem.load.calls import OK, Call
from tandem.load.completions_target import CompletionsTarget, open_session
from tandem.load.workload import Demand

DEMAND = Demand((5, 6, 7), 4)


class Peer:
    """A server that answers with the given lines, and keeps what it was sent."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.status = 200
        self.bodies: list[dict[str, object]] = []
        self.is_cut = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        response = web.StreamResponse(status=self.status)
        await response.prepare(request)
        for line in self.lines:
            await response.write(line.encode())
        if self.is_cut:
            assert request.transport is not None
            request.transport.abort()
        return response


@pytest.fixture
async def peer() -> AsyncIterator[tuple[Peer, str]]:
    peer = Peer()
    app = web.Application()
    app.router.add_post("/v1/completions", peer.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    yield peer, f"http://{host}:{port}/v1"
    await runner.cleanup()


async def ask(url: str, fields: dict[str, object] | None = None) -> Call:
    call, times = Call(due=0.0, sent=0.0), iter(range(1, 100))
    async with open_session() as session:
        await CompletionsTarget(session, url, fields or {}).send(DEMAND, call, lambda: float(next(times)))
    return call


async def test_a_stream_with_totals(peer: tuple[Peer, str]) -> None:
    server, url = peer
    server.lines = [
        'data: {"choices": [{"text": "a"}]}\n\n: a comment\n\n',
        'data: {"choices": [{"text": "bc", "token_ids": [8, 9]}]}\n\ndata: {"choi',
        'ces": [{"text": "", "finish_reason": "length"}]}\n\n',
        'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}\n\ndata: [DONE]\n\n',
    ]
    call = await ask(url, {"model": "m"})
    assert (call.status, call.counts, call.times) == (OK, [1, 2], [1.0, 2.0])
    assert (call.num_prompt_tokens, call.num_output_tokens) == (3, 4)
    (body,) = server.bodies
    assert body["prompt"] == [5, 6, 7] and body["max_tokens"] == 4 and body["model"] == "m"
    assert body["ignore_eos"] is True and body["temperature"] == 0.0 and body["stream"] is True


async def test_without_totals_events_are_counted(peer: tuple[Peer, str]) -> None:
    server, url = peer
    server.lines = ['data: {"choices": [{"text": "a"}]}\n\n'] * 3 + ["data: [DONE]\n\n"]
    call = await ask(url)
    assert (call.status, call.num_prompt_tokens, call.num_output_tokens) == (OK, 3, 3)


async def test_failures_have_names(peer: tuple[Peer, str]) -> None:
    server, url = peer
    server.lines = ['data: {"error": {"message": "no"}}\n\n']
    assert (await ask(url)).status == "error event"
    server.lines = ["data: {nothing}\n\n"]
    assert (await ask(url)).status == "DecodeError"
    server.status = 503
    assert (await ask(url)).status == "HTTP 503"
    server.lines, server.status, server.is_cut = ['data: {"choices": [{"text": "a"}]}\n\n'], 200, True
    assert (await ask(url)).status == "ClientPayloadError"
    assert (await ask("http://127.0.0.1:1/v1")).status == "ClientConnectorError"
