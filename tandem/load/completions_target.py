"""A server that speaks the streaming /v1/completions of OpenAI, under load.

Greedy, and no end before max_tokens (ignore_eos), so that all servers do the same work for one set. The only module
that imports aiohttp.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
import msgspec

from tandem.load.calls import OK, Call
from tandem.load.workload import Demand

# A line of server-sent events that ends the stream, and what precedes the data of each.
DONE, DATA = b"[DONE]", b"data:"


def open_session() -> aiohttp.ClientSession:
    """As many connections as clients, and an answer takes as long as it takes. Close it in the loop that opened it.

    Every request has a connection of its own: servers close idle ones when they like (llama.cpp's after 5 s), and what
    is sent at that moment is lost.
    """
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))


class _Choice(msgspec.Struct):
    text: str = ""
    token_ids: list[int] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class CompletionsTarget:
    """A server with POST <url>/completions, url ending in /v1. An event without token ids counts as one token; the
    totals are those of the server's usage where it tells them. fields: what every body holds besides, such as the
    name of the model."""

    def __init__(self, session: aiohttp.ClientSession, url: str, fields: Mapping[str, object]) -> None:
        self._session = session
        self._url = f"{url.rstrip('/')}/completions"
        self._fields = fields

    async def send(self, demand: Demand, call: Call, now: Callable[[], float]) -> None:
        """One streaming completion; a failure is named by its HTTP status, or by its kind."""
        try:
            async with self._session.post(self._url, json=self._body(demand)) as answer:
                call.status = OK if answer.status == 200 else f"HTTP {answer.status}"
                if call.is_ok:
                    async for event in _events(answer.content):
                        self._note(event, call, now())
        except (aiohttp.ClientError, OSError, msgspec.DecodeError) as error:
            call.status = type(error).__name__
        call.num_output_tokens = call.num_output_tokens or sum(call.counts)
        call.num_prompt_tokens = call.num_prompt_tokens or len(demand.prompt)

    def _body(self, demand: Demand) -> dict[str, object]:
        return {
            "prompt": demand.prompt,
            "max_tokens": demand.max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._fields,
        }

    @staticmethod
    def _note(event: _Event, call: Call, time: float) -> None:
        if event.error is not None:
            call.status = "error event"
        if event.usage is not None:
            call.num_prompt_tokens, call.num_output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens
        for choice in event.choices:
            ids = choice.token_ids
            if ids or choice.text:
                call.bring(time, len(ids) if ids else 1)


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[_Event]:
    """The events of a stream of server-sent events, to its end."""
    decoder = msgspec.json.Decoder(_Event)
    async for line in content:
        if line.startswith(DATA):
            data = line[len(DATA) :].strip()
            if data == DONE:
                return
            yield decoder.decode(data)
