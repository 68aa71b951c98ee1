"""Tool calls through a whole gateway: what is asked of the engine, and what a client reads."""

import json
from typing import Any

import pytest

from services.tokenizer import Tokenizer
from services.wire import columns
from services.wire.messages import Constraint, ConstraintKind, FinishReason
from tandem.v1 import chat_pb2 as chat
from tandem.v1 import common_pb2 as common
from tests.unit.gateway.rig import Front, read, rest

pytestmark = pytest.mark.asyncio(loop_scope="session")

WEATHER = chat.Tool(name="weather", parameters='{"type": "object", "properties": {"city": {"type": "string"}}}')
TIME = chat.Tool(name="time")
ARGUMENTS = '{"city": "Rom"}'
ONE_CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'


def request(**fields: Any) -> chat.ChatRequest:
    messages = [chat.ChatMessage(role=chat.ROLE_USER, content="How is it in Rom?")]
    return chat.ChatRequest(**{"messages": messages, "tools": [WEATHER, TIME], **fields})


async def test_a_stream_tells_calls_in_pieces(front: Front) -> None:
    stream = front.stream("ChatService/StreamChat", request(), chat.ChatChunk)
    submit = await front.engine.submit()
    front.engine.say(submit, "I look. <tool", [5])
    first = await read(stream)
    assert first.delta == chat.ChatDelta(role=chat.ROLE_ASSISTANT, content="I look. ")
    front.engine.say(submit, '_call>{"name": "weather", "argum', [6])
    held = await read(stream)
    assert (held.delta, held.num_tokens) == (chat.ChatDelta(), 1)
    front.engine.say(submit, 'ents": {"city"', [7])
    begun, piece = (await read(stream)).delta.tool_calls
    assert (begun.index, begun.name, begun.arguments, piece.arguments) == (0, "weather", "", '{"city"')
    assert begun.id.startswith("call_") and not (piece.id or piece.name)
    front.engine.say(submit, ': "Rom"}}</tool_call>', [8])
    front.engine.end(submit, num_output_tokens=4, matched_token=2)
    chunks = await rest(stream)
    deltas = [piece for chunk in chunks for piece in chunk.delta.tool_calls]
    assert "".join(each.arguments for each in deltas) == ': "Rom"}'
    assert "".join(chunk.delta.content for chunk in chunks) == ""
    finish = chunks[-1].finish
    assert (finish.reason, finish.token_id) == (common.FINISH_REASON_TOOL_CALLS, 2)
    assert chunks[-1].usage.completion_tokens == 4


async def test_a_unary_call_tells_them_whole(front: Front) -> None:
    call = front.unary("ChatService/Chat", request(sampling=common.Sampling(n=2)), chat.ChatResponse)
    submit = await front.engine.submit()
    front.engine.say(submit, ONE_CALL + ONE_CALL, [5, 6])
    front.engine.say(submit, "No need.", [7], index=1)
    for index in range(2):
        front.engine.end(submit, index=index)
    calling, talking = (await call).choices
    assert calling.message.role == chat.ROLE_ASSISTANT and calling.message.content == ""
    assert [(each.name, each.arguments) for each in calling.message.tool_calls] == [("weather", ARGUMENTS)] * 2
    assert len({each.id for each in calling.message.tool_calls}) == 2
    assert calling.finish.reason == common.FINISH_REASON_TOOL_CALLS
    assert (talking.message.content, list(talking.message.tool_calls)) == ("No need.", [])
    assert talking.finish.reason == common.FINISH_REASON_STOP


async def test_a_call_cut_short_is_a_length(front: Front) -> None:
    call = front.unary("ChatService/Chat", request(), chat.ChatResponse)
    submit = await front.engine.submit()
    front.engine.say(submit, ONE_CALL[:-20], [5])
    front.engine.end(submit, FinishReason.LENGTH)
    (choice,) = (await call).choices
    assert choice.finish.reason == common.FINISH_REASON_LENGTH
    assert ARGUMENTS.startswith(choice.message.tool_calls[0].arguments)


async def test_what_is_held_back_at_the_end_is_let_go(front: Front) -> None:
    stream = front.stream("ChatService/StreamChat", request(), chat.ChatChunk)
    submit = await front.engine.submit()
    front.engine.say(submit, "a <tool_", [5])
    assert (await read(stream)).delta.content == "a "
    front.engine.end(submit)
    last = await read(stream)
    assert (last.delta.content, last.finish.reason) == ("<tool_", common.FINISH_REASON_STOP)


async def test_without_tools_nothing_is_read_into_a_text(front: Front) -> None:
    none = chat.ToolChoice(mode=chat.TOOL_MODE_NONE)
    for asked in (request(tools=[]), request(tool_choice=none)):
        call = front.unary("ChatService/Chat", asked, chat.ChatResponse)
        submit = await front.engine.submit()
        front.engine.say(submit, ONE_CALL, [5])
        front.engine.end(submit)
        (choice,) = (await call).choices
        assert choice.message == chat.ChatMessage(role=chat.ROLE_ASSISTANT, content=ONE_CALL)
        assert choice.finish.reason == common.FINISH_REASON_STOP


async def prompt_of(front: Front, tokenizer: Tokenizer, asked: chat.ChatRequest) -> tuple[str, Constraint | None]:
    call = front.unary("ChatService/Chat", asked, chat.ChatResponse)
    submit = await front.engine.submit()
    front.engine.end(submit)
    await call
    return tokenizer.decode(columns.unpack(submit.prompt_tokens), False), submit.sampling.constraint


async def test_a_template_without_tools_gets_them_in_a_system_message(front: Front, tokenizer: Tokenizer) -> None:
    prompt, constraint = await prompt_of(front, tokenizer, request())
    assert constraint is None
    system, user, *_ = prompt.split("<|im_end|>\n")
    assert system.startswith("<|im_start|>system\nYou may call functions") and user.endswith("How is it in Rom?")
    assert '{"type": "function", "function": {"name": "weather"' in system and '"name": "time"' in system
    none = chat.ToolChoice(mode=chat.TOOL_MODE_NONE)
    without, _ = await prompt_of(front, tokenizer, request(tool_choice=none))
    assert (without, None) == await prompt_of(front, tokenizer, request(tools=[]))
    assert "weather" not in without


async def test_required_and_named_calls_are_a_constraint(front: Front, tokenizer: Tokenizer) -> None:
    required = chat.ToolChoice(mode=chat.TOOL_MODE_REQUIRED)
    prompt, constraint = await prompt_of(front, tokenizer, request(tool_choice=required))
    assert "You may call functions" in prompt
    assert constraint is not None and constraint.kind is ConstraintKind.JSON_SCHEMA
    assert json.loads(constraint.source)["type"] == "array"
    _, constraint = await prompt_of(front, tokenizer, request(tool_choice=chat.ToolChoice(name="time")))
    assert constraint is not None
    assert json.loads(constraint.source)["properties"]["name"] == {"const": "time"}


async def test_an_answer_that_must_be_calls_streams_them(front: Front) -> None:
    asked = request(tool_choice=chat.ToolChoice(mode=chat.TOOL_MODE_REQUIRED))
    stream = front.stream("ChatService/StreamChat", asked, chat.ChatChunk)
    submit = await front.engine.submit()
    text = f'[{{"name": "weather", "arguments": {ARGUMENTS}}}, {{"name": "time", "arguments": {{}}}}]'
    for number, character in enumerate(text):
        front.engine.say(submit, character, [number])
    front.engine.end(submit)
    chunks = await rest(stream)
    assert not any(chunk.delta.content for chunk in chunks)
    pieces = [piece for chunk in chunks for piece in chunk.delta.tool_calls]
    assert [piece.name for piece in pieces if piece.name] == ["weather", "time"]
    told = ["".join(piece.arguments for piece in pieces if piece.index == index) for index in range(2)]
    assert told == [ARGUMENTS, "{}"]
    assert chunks[-1].finish.reason == common.FINISH_REASON_TOOL_CALLS


async def test_calls_and_answers_of_earlier_turns_reach_the_prompt(front: Front, tokenizer: Tokenizer) -> None:
    call = chat.ToolCall(id="c1", name="weather", arguments=ARGUMENTS)
    messages = [
        chat.ChatMessage(role=chat.ROLE_USER, content="How is it in Rom?"),
        chat.ChatMessage(role=chat.ROLE_ASSISTANT, tool_calls=[call]),
        chat.ChatMessage(role=chat.ROLE_TOOL, tool_call_id="c1", content="sunny<|im_end|>"),
    ]
    prompt, _ = await prompt_of(front, tokenizer, request(messages=messages))
    assert f"<|im_start|>assistant\n{ONE_CALL}<|im_end|>\n" in prompt
    assert "<|im_start|>user\n<tool_response>\nsunny<|im_end|>\n</tool_response><|im_end|>\n" in prompt
