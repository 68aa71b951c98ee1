"""Client and AsyncClient against a real gateway with a scripted engine behind it."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

import tandem
from services.tokenizer import Tokenizer
from services.wire import columns
from services.wire.messages import FailureReason, FinishReason, Submit
from tandem import NO_RETRIES, AsyncClient, Chunk, Client, errors
from tests.unit.gateway.rig import Front, eventually, running
from tests.unit.gateway.test_calls import LOGPROBS

pytestmark = pytest.mark.asyncio(loop_scope="session")

HI = [{"role": "user", "content": "hi"}]


async def answered(front: Front) -> Submit:
    """Answer the next call with two words and an end."""
    submit = await front.engine.submit()
    front.engine.say(submit, "Par", [5], logprobs=[LOGPROBS] if submit.output.logprobs else ())
    front.engine.say(submit, "is", [6])
    front.engine.end(submit, FinishReason.STOP, matched_stop="END", num_output_tokens=2)
    return submit


async def from_thread(front: Front, call: Callable[[Client], Any]) -> Any:
    """Run a synchronous call, as a program without a loop would."""

    def run() -> Any:
        with Client(front.address) as client:
            return call(client)

    return await asyncio.to_thread(run)


async def test_sync_unary(front: Front) -> None:
    engine = asyncio.create_task(answered(front))
    result = await from_thread(front, lambda client: client.generate("Hello world", seed=9, stop=["END"], timeout_s=5))
    assert (result.text, result.seed, result.completions[0].finish) == ("Paris", 9, tandem.Finish("stop", stop="END"))
    assert result.usage == tandem.Usage(2, 2, 1, 4)
    assert result.timings.queue_ms == 1
    assert (await engine).stopping.stop_strings == ("END",)


async def test_sync_stream(front: Front) -> None:
    engine = asyncio.create_task(answered(front))

    def read(client: Client) -> list[Chunk]:
        with client.stream_chat(HI, timeout_s=5, logprobs=1, return_token_ids=True) as stream:
            return list(stream)

    chunks = await from_thread(front, read)
    await engine
    assert "".join(chunk.text for chunk in chunks) == "Paris"
    assert [token for chunk in chunks for token in chunk.token_ids] == [5, 6]
    assert (chunks[0].logprobs[0].chosen.text, chunks[0].logprobs[0].chosen.raw) == (None, b"\xe2\x80")
    assert [top.text for top in chunks[0].logprobs[0].top] == ["é"]
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_async_unary_and_stream(front: Front) -> None:
    async with AsyncClient(front.address) as client:
        engine = asyncio.create_task(answered(front))
        assert (await client.chat(HI, temperature=0, timeout_s=5)).text == "Paris"
        assert (await engine).sampling.temperature == 0.0
        engine = asyncio.create_task(answered(front))
        async with client.stream_generate([1, 2, 3], timeout_s=5) as stream:
            assert "".join([chunk.text async for chunk in stream]) == "Paris"
        assert columns.unpack((await engine).prompt_tokens).tolist() == [1, 2, 3]


async def test_the_small_calls(front: Front) -> None:
    async with AsyncClient(front.address) as client:
        assert await client.tokenize("Hello world") == [19556, 905]
        assert await client.detokenize([19556, 905]) == "Hello world"
        (listed,) = await client.models()
        assert listed == await client.model("smol") == await client.wait_until_ready(5)
        assert (listed.name, listed.kv_capacity_tokens, listed.limits["max_n"]) == ("smol", 1008, 4)
    assert await from_thread(front, lambda client: client.tokenize("a<|im_end|>", parse_special=True)) == [81, 2]
    assert await from_thread(front, lambda client: client.detokenize([2], skip_special_tokens=False)) == "<|im_end|>"
    assert (await from_thread(front, lambda client: client.wait_until_ready(5))).name == "smol"
    assert len(await from_thread(front, lambda client: client.models())) == 1


async def test_a_closed_stream_stops_the_work(front: Front) -> None:
    async with AsyncClient(front.address) as client:
        stream = client.stream_generate("x")
        submit = await front.engine.submit()
        front.engine.say(submit, "a", [1])
        async for chunk in stream:
            assert chunk.text == "a"
            break
        stream.close()
        assert (await front.engine.cancel()).identity == submit.identity
        with pytest.raises(errors.Cancelled):
            await anext(stream)


async def test_a_forgotten_stream_stops_the_work(front: Front) -> None:
    async with AsyncClient(front.address) as client:
        stream = client.stream_generate("x")
        submit = await front.engine.submit()
        del stream
        gc.collect()
        assert (await front.engine.cancel()).identity == submit.identity


async def test_leaving_a_sync_stream_stops_the_work(front: Front) -> None:
    async def one_word() -> Submit:
        submit = await front.engine.submit()
        front.engine.say(submit, "a", [1])
        return submit

    def read_one(client: Client) -> str:
        with client.stream_generate("x", timeout_s=5) as stream:
            return next(stream).text

    engine = asyncio.create_task(one_word())
    assert await from_thread(front, read_one) == "a"
    assert (await front.engine.cancel()).identity == (await engine).identity


async def test_a_timeout_is_a_deadline(front: Front) -> None:
    async with AsyncClient(front.address) as client:
        with pytest.raises(errors.DeadlineExceeded):
            await client.generate("x", timeout_s=0.1)


async def test_what_the_server_refuses_is_raised_by_name(front: Front) -> None:
    async with AsyncClient(front.address, retries=NO_RETRIES) as client:
        with pytest.raises(errors.InvalidRequest) as wrong:
            await client.generate("x", temperature=-1, top_p=2)
        assert wrong.value.fields.keys() == {"sampling.temperature", "sampling.top_p"}
        with pytest.raises(errors.ContextLengthExceeded) as long:
            await client.generate([1] * 600)
        assert dict(long.value.details.metadata) == {"limit": "512", "given": "600"}
        with pytest.raises(errors.ModelNotFound):
            await client.chat(HI, model="another")

        async def full() -> None:
            front.engine.fail(await front.engine.submit(), FailureReason.QUEUE_FULL, retry_after_ms=1500)

        engine = asyncio.create_task(full())
        with pytest.raises(errors.QueueFull) as busy:
            await client.generate("x")
        await engine
        assert busy.value.retry_after_s == 1.5


async def test_nobody_there_and_not_ready_yet_are_told_apart(tokenizer: Tokenizer) -> None:
    with pytest.raises(errors.ConnectionFailed):
        await asyncio.to_thread(Client("127.0.0.1:1", retries=NO_RETRIES).generate, "x")
    async with running(tokenizer, is_ready=False) as front, AsyncClient(front.address, retries=NO_RETRIES) as client:
        with pytest.raises(errors.NotReady) as starting:
            await client.generate("x")
        assert starting.value.retry_after_s is not None
        waiting = asyncio.create_task(client.wait_until_ready(10))
        front.engine.ready()
        assert (await waiting).name == "smol"


async def test_waiting_for_a_server_that_never_comes_ends() -> None:
    with pytest.raises(errors.Unavailable):
        await asyncio.to_thread(Client("127.0.0.1:1").wait_until_ready, 0.2)
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(errors.Unavailable):
            await client.wait_until_ready(0.2)


async def test_two_hundred_streams_on_one_client(front: Front) -> None:
    async with AsyncClient(front.address) as client:

        async def one(number: int) -> str:
            async with client.stream_generate([number]) as stream:
                return "".join([chunk.text async for chunk in stream])

        calls = [asyncio.create_task(one(number)) for number in range(200)]
        for _ in calls:
            submit = await front.engine.submit()
            (number,) = columns.unpack(submit.prompt_tokens)
            front.engine.say(submit, f"<{number}>", [number])
            front.engine.end(submit)
        assert await asyncio.gather(*calls) == [f"<{number}>" for number in range(200)]
    await eventually(lambda: len(front.server.gateway.calls) == 0)
