"""A Tandem server under load, over gRPC. Greedy, and no end before max_tokens: all servers do the same work."""

from collections.abc import Callable

from tandem.aio import AsyncClient
from tandem.errors import TandemError
from tandem.load.calls import OK, Call
from tandem.load.workload import Demand


class TandemTarget:
    """A Tandem server."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def send(self, demand: Demand, call: Call, now: Callable[[], float]) -> None:
        """One StreamGenerate; a failure is named by its reason."""
        stream = self._client.stream_generate(
            demand.prompt, max_tokens=demand.max_tokens, temperature=0.0, ignore_eos=True
        )
        try:
            async for chunk in stream:
                if chunk.num_tokens:
                    call.bring(now(), chunk.num_tokens)
                if chunk.usage is not None:
                    call.num_prompt_tokens = chunk.usage.prompt_tokens
                    call.num_output_tokens = chunk.usage.completion_tokens
            call.status = OK
        except TandemError as error:
            call.status = error.reason or type(error).__name__
