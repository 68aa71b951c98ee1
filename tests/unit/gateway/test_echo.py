"""What a request asks of its prompt: echo, its log-probabilities, truncation; and how long the call may take."""

import asyncio
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from services.tokenizer import Tokenizer
from services.wire import columns
from services.wire.messages import Candidate, FailureReason, FinishReason, Submit, TextDelta, TokenLogprobs
from tandem.v1 import chat_pb2 as chat
from tandem.v1 import common_pb2 as common
from tandem.v1 import inference_pb2 as pb
from tests.unit.gateway.rig import CARD, READY, Front, error_of, eventually, read, rest, running

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELLO_WORLD = [19556, 905]


def scored(token_id: int, token_bytes: bytes) -> TokenLogprobs:
    """The token second to token 9."""
    return TokenLogprobs((Candidate(token_id, -2.0, 2, token_bytes), Candidate(9, -0.5, 1, b"nine")))


WORLD = scored(905, b" world")


def first_delta(submit: Submit, index: int = 0, prompt: tuple[TokenLogprobs | None, ...] = ()) -> TextDelta:
    """One token, and what goes before it."""
    identity = submit.identity
    logprobs = (scored(5, b"\xe2"),) if submit.output.logprobs else ()
    column = columns.pack([5])
    return TextDelta(identity.request, identity.incarnation, index, "!", column, logprobs, prompt)


async def test_an_echo_stands_before_the_first_token_and_counts_for_nothing(front: Front) -> None:
    stream = front.stream_generate(output=common.Output(echo=True, return_token_ids=True))
    submit = await front.engine.submit()
    front.engine.say(submit, "!", [5])
    first = await read(stream)
    assert (first.text, list(first.token_ids), first.num_tokens) == ("Hello world!", [*HELLO_WORLD, 5], 1)
    front.engine.say(submit, "?", [6])
    second = await read(stream)
    assert (second.text, list(second.token_ids)) == ("?", [6])
    front.engine.end(submit, num_output_tokens=2)
    last = await read(stream)
    assert last.text == "" and (last.usage.prompt_tokens, last.usage.completion_tokens) == (2, 2)


async def test_every_sequence_has_its_echo_in_one_message_too(front: Front) -> None:
    call = front.generate(sampling=common.Sampling(n=2), output=common.Output(echo=True, return_token_ids=True))
    submit = await front.engine.submit()
    for index in (1, 0):
        front.engine.say(submit, f"<{index}>", [index], index=index)
        front.engine.end(submit, index=index, num_output_tokens=1)
    reply = await call
    assert [part.text for part in reply.completions] == ["Hello world<0>", "Hello world<1>"]
    assert [list(part.token_ids) for part in reply.completions] == [[*HELLO_WORLD, 0], [*HELLO_WORLD, 1]]
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (2, 2)


@pytest.mark.parametrize(("skips", "text"), [(None, "hi"), (True, "hi"), (False, "hi<|im_end|>")])
async def test_an_echo_shows_special_tokens_as_the_output_does(front: Front, skips: bool | None, text: str) -> None:
    call = front.generate(text="hi<|im_end|>", output=common.Output(echo=True, skip_special_tokens=skips))
    front.engine.end(await front.engine.submit(), num_output_tokens=0)
    assert (await call).completions[0].text == text


def shown(tokens: Any) -> list[tuple[int, list[int]] | None]:
    return [
        (token.chosen.token_id, [top.token_id for top in token.top]) if token.HasField("chosen") else None
        for token in tokens
    ]


@pytest.mark.parametrize("reported", [(WORLD,), (None, WORLD)])
@pytest.mark.parametrize("k", [0, 1])
async def test_prompt_logprobs_are_told_once_the_first_token_without(
    front: Front, k: int, reported: tuple[TokenLogprobs | None, ...]
) -> None:
    output = common.Output(prompt_logprobs=k)
    for n in (1, 2):
        stream = front.stream_generate(sampling=common.Sampling(n=n), output=output)
        submit = await front.engine.submit()
        assert (submit.sampling.prompt_logprobs, submit.sampling.logprobs) == (k, None)
        for index in reversed(range(n)):
            front.engine.batch(deltas=(first_delta(submit, index, () if index else reported),))
            front.engine.end(submit, index=index)
        chunks = await rest(stream)
        assert [shown(chunk.prompt_logprobs) for chunk in chunks if chunk.prompt_logprobs] == [[None, (905, [9][:k])]]
        assert all(chunk.index == 0 for chunk in chunks if chunk.prompt_logprobs)
        assert not any(chunk.logprobs for chunk in chunks)


async def test_prompt_logprobs_of_a_unary_call_stand_beside_its_completions(front: Front) -> None:
    call = front.generate(output=common.Output(prompt_logprobs=1))
    submit = await front.engine.submit()
    front.engine.batch(deltas=(first_delta(submit, prompt=(WORLD,)),))
    front.engine.end(submit)
    reply = await call
    assert shown(reply.prompt_logprobs) == [None, (905, [9])]
    (token,) = (token for token in reply.prompt_logprobs if token.HasField("chosen"))
    assert (token.chosen.text, token.chosen.rank, token.top[0].text) == (" world", 2, "nine")


async def test_conversations_have_prompt_logprobs_too(front: Front) -> None:
    request = chat.ChatRequest(
        messages=[chat.ChatMessage(role=chat.ROLE_USER, content="hi")], output=common.Output(prompt_logprobs=0)
    )
    call = front.unary("ChatService/Chat", request, chat.ChatResponse)
    submit = await front.engine.submit()
    num_prompt_tokens = columns.length(submit.prompt_tokens)
    front.engine.batch(deltas=(first_delta(submit, prompt=(WORLD,) * (num_prompt_tokens - 1)),))
    front.engine.end(submit)
    reply = await call
    assert len(reply.prompt_logprobs) == num_prompt_tokens and reply.choices[0].message.content == "!"


async def test_an_echo_with_logprobs_joins_prompt_and_output(front: Front) -> None:
    call = front.generate(output=common.Output(echo=True, logprobs=1, return_token_ids=True))
    submit = await front.engine.submit()
    assert (submit.sampling.prompt_logprobs, submit.sampling.logprobs) == (1, 1)
    front.engine.batch(deltas=(first_delta(submit, prompt=(WORLD,)),))
    front.engine.end(submit)
    (part,) = (await call).completions
    assert list(part.token_ids) == [*HELLO_WORLD, 5]
    assert shown(part.logprobs) == [None, (905, [9]), (5, [9])]
    assert not (await call).prompt_logprobs


async def test_each_k_is_its_own(front: Front) -> None:
    call = front.generate(output=common.Output(echo=True, logprobs=0, prompt_logprobs=1))
    submit = await front.engine.submit()
    assert (submit.sampling.prompt_logprobs, submit.sampling.logprobs) == (1, 0)
    front.engine.batch(deltas=(first_delta(submit, prompt=(WORLD,)),))
    front.engine.end(submit)
    reply = await call
    assert shown(reply.prompt_logprobs) == [None, (905, [9])]
    assert shown(reply.completions[0].logprobs) == [None, (905, []), (5, [])]


async def test_a_sequence_ahead_of_the_first_waits_for_what_it_begins_with(front: Front) -> None:
    stream = front.stream_generate(sampling=common.Sampling(n=2), output=common.Output(echo=True, logprobs=0))
    submit = await front.engine.submit()
    front.engine.batch(deltas=(first_delta(submit, 1),))
    front.engine.end(submit, index=1)
    first = asyncio.create_task(read(stream))
    done, _ = await asyncio.wait([first], timeout=0.1)
    assert not done
    front.engine.batch(deltas=(first_delta(submit, 0, (WORLD,)),))
    front.engine.end(submit)
    chunks = [await first, *await rest(stream)]
    begun = {chunk.index: shown(chunk.logprobs) for chunk in chunks if chunk.text}
    assert begun == {index: [None, (905, []), (5, [])] for index in (0, 1)}


async def test_a_call_that_fails_before_its_prompt_is_scored_tells_nothing_by_halves(front: Front) -> None:
    stream = front.stream_generate(sampling=common.Sampling(n=2), output=common.Output(echo=True, logprobs=0))
    submit = await front.engine.submit()
    front.engine.batch(deltas=(first_delta(submit, 1),))
    front.engine.fail(submit, FailureReason.POISONED_ROW)
    assert (await error_of(stream.read())).reason == "POISONED_ROW"


@pytest.mark.parametrize(("k", "kept"), [(1, [905]), (2, HELLO_WORLD), (3, HELLO_WORLD), (2**32 - 1, HELLO_WORLD)])
async def test_truncation_keeps_the_last_tokens(front: Front, k: int, kept: list[int]) -> None:
    for prompt in ({"text": "Hello world"}, {"token_ids": common.TokenIds(ids=HELLO_WORLD)}):
        call = front.generate(
            truncate_prompt_tokens=k, output=common.Output(echo=True, return_token_ids=True), **prompt
        )
        submit = await front.engine.submit()
        assert columns.unpack(submit.prompt_tokens).tolist() == kept
        front.engine.end(submit, num_output_tokens=0)
        reply = await call
        assert reply.usage.prompt_tokens == len(kept)
        assert list(reply.completions[0].token_ids) == kept


async def test_truncation_makes_room_in_the_context(front: Front, tokenizer: Tokenizer) -> None:
    context = CARD.context_length
    long = "a " * (2 * context)
    expected = tokenizer.encode_prompt(long)[-(context - 1) :]
    prompts: list[dict[str, Any]] = [{"text": long}, {"token_ids": common.TokenIds(ids=tokenizer.encode_prompt(long))}]
    for prompt in prompts:
        assert (await error_of(front.generate(**prompt))).reason == "CONTEXT_LENGTH_EXCEEDED"
        call = front.generate(truncate_prompt_tokens=context - 1, **prompt)
        submit = await front.engine.submit()
        assert columns.unpack(submit.prompt_tokens).tolist() == expected
        front.engine.end(submit)
        await call
    too_many = await error_of(front.generate(truncate_prompt_tokens=context, **prompts[0]))
    assert too_many.reason == "CONTEXT_LENGTH_EXCEEDED"


async def test_conversations_are_truncated_behind_their_template(front: Front, tokenizer: Tokenizer) -> None:
    messages = [chat.ChatMessage(role=chat.ROLE_USER, content="Hello world")]
    request = chat.ChatRequest(messages=messages, truncate_prompt_tokens=7)
    call = front.unary("ChatService/Chat", request, chat.ChatResponse)
    submit = await front.engine.submit()
    whole = tokenizer.encode_chat([{"role": "user", "content": "Hello world"}])
    assert columns.unpack(submit.prompt_tokens).tolist() == whole[-7:]
    front.engine.end(submit)
    await call


@pytest.mark.parametrize(
    ("timeout_ms", "deadline_s", "most_ms"), [(None, 60, 60_000), (20_000, 60, 20_000), (90_000, 60, 60_000)]
)
async def test_the_smaller_of_both_limits_holds(
    front: Front, timeout_ms: int | None, deadline_s: float, most_ms: int
) -> None:
    request = pb.GenerateRequest(text="x", timeout_ms=timeout_ms)
    call = front.unary("InferenceService/Generate", request, pb.GenerateResponse, seconds=deadline_s)
    submit = await front.engine.submit()
    # gRPC itself rounds deadlines.
    assert submit.remaining_ms is not None and abs(submit.remaining_ms - most_ms) < 4_000
    front.engine.fail(submit, FailureReason.DEADLINE)
    error = await error_of(call)
    assert (error.code, error.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE")


async def test_a_salt_goes_with_the_prompt(front: Front) -> None:
    call = front.generate(cache_salt="mine")
    submit = await front.engine.submit()
    assert submit.cache_salt == "mine"
    front.engine.end(submit, FinishReason.STOP)
    await call


async def test_an_echo_of_ids_beyond_the_vocabulary_is_the_text_of_the_others(tokenizer: Tokenizer) -> None:
    padded = replace(READY, card=replace(CARD, vocab_size=tokenizer.vocab_size + 64))
    async with running(tokenizer, is_ready=False) as front:
        front.engine.ready(padded)
        front.engine.show_text_side()
        await eventually(lambda: front.server.gateway.is_serving)
        ids = common.TokenIds(ids=[HELLO_WORLD[0], tokenizer.vocab_size + 63, HELLO_WORLD[1]])
        request = pb.GenerateRequest(token_ids=ids, output=common.Output(echo=True))
        call = front.unary("InferenceService/Generate", request, pb.GenerateResponse)
        submit = await front.engine.submit()
        front.engine.say(submit, "!", [5])
        front.engine.end(submit)
        assert (await call).completions[0].text == "Hello world!"
