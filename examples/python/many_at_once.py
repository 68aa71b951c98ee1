"""Tandem from an event loop: many streams at once over one client, with a timeout, and a word for each way to fail.

Usage: python examples/python/many_at_once.py [ADDRESS]
"""

import asyncio
import sys

from tandem import AsyncClient, Retries, TandemError, errors

QUESTIONS = [f"Question {number}: what is {number} plus {number}?" for number in range(16)]


async def answer(client: AsyncClient, question: str) -> str:
    """One streamed answer, or why there is none."""
    try:
        async with client.stream_generate(question, max_tokens=16, temperature=0, timeout_s=60) as stream:
            return "".join([chunk.text async for chunk in stream])
    except errors.Overloaded as error:
        # The client has tried again already, as often as it may and when the server said.
        return f"(no room; come back in {error.retry_after_s} s)"
    except errors.DeadlineExceeded:
        return "(too late)"
    except TandemError as error:
        return f"({error.reason or type(error).__name__}: {error})"


async def main(address: str) -> None:
    """Ask everything at once; the server batches what it can."""
    # Several servers: "10.0.0.1:50051,10.0.0.2:50051", or "dns:///tandem.example.org:50051".
    async with AsyncClient(address, retries=Retries(max_attempts=6)) as client:
        await client.wait_until_ready(timeout_s=60)
        answers = await asyncio.gather(*[answer(client, question) for question in QUESTIONS])
    for question, said in zip(QUESTIONS, answers, strict=True):
        print(f"{question} -> {said!r}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"))
