"""Every option of a request as a flag of `tandem generate` and `tandem chat`, and what both show of an answer."""

import asyncio
import json
from pathlib import Path
from typing import get_type_hints

import pytest
import typer

from services.wire import columns
from services.wire.messages import Candidate, ConstraintKind, FinishReason, Submit, TextDelta, TokenLogprobs
from tandem.cli import app
from tandem.options import ChatOptions, Options
from tests.unit.gateway.rig import Front
from tests.unit.tandem.test_cli import answered, tandem

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOOLS = [{"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]


@pytest.mark.parametrize(("command", "options"), [("generate", Options), ("chat", ChatOptions)])
async def test_every_option_has_a_flag(command: str, options: type) -> None:
    group = typer.main.get_command(app)
    names = {parameter.name for parameter in group.commands[command].params}  # type: ignore[attr-defined]
    missing = get_type_hints(options).keys() - names
    # A terminal shows one answer of a conversation, and the prompt is there already.
    assert missing == ({"n", "echo"} if command == "chat" else set())


async def test_flags_reach_the_engine(front: Front, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    engine = asyncio.create_task(answered(front, "x"))
    flags = {
        "repetition-penalty": "1.5",
        "presence-penalty": "0.5",
        "frequency-penalty": "-0.5",
        "logit-bias": "5=2.5,7=-100",
        "allowed-token-ids": "5,6,2",
        "bad-words": "7",
        "json-schema": f"@{schema}",
        "stop-token-ids": "8,9",
        "timeout-ms": "30000",
        "truncate-prompt-tokens": "1",
        "cache-salt": "s",
        "priority": "3",
        "tenant": "t",
        "request-id": "mine",
        "model": "smol",
    }
    given = [word for name, value in flags.items() for word in (f"--{name}", value)]
    more = ["--show-special-tokens", "--include-stop", "--return-token-ids", "--echo"]
    done = await tandem("generate", "--prompt", "Hello world", "--address", front.address, *given, *more)
    assert (done.exit_code, done.stdout) == (0, " worldx\n905 5\n"), done.stderr
    submit = await engine
    sampling = submit.sampling
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.5, 0.5, -0.5)
    assert columns.unpack(sampling.bias_token_ids).tolist() == [5, 7]
    assert columns.unpack_floats(sampling.bias_values).tolist() == [2.5, -100]
    assert columns.unpack(sampling.allowed_token_ids).tolist() == [2, 5, 6]
    assert len(sampling.bad_words) == 1
    assert sampling.constraint is not None and sampling.constraint.source == '{"type": "object"}'
    assert columns.unpack(submit.stopping.stop_token_ids).tolist() == [2, 8, 9] and submit.stopping.include_stop
    assert columns.unpack(submit.prompt_tokens).tolist() == [905]
    assert submit.remaining_ms is not None and submit.remaining_ms <= 30_000
    assert (submit.cache_salt, submit.priority, submit.tenant, submit.identity.request) == ("s", 3, "t", "mine")
    assert not submit.output.skip_special_tokens


@pytest.mark.parametrize(
    ("flags", "kind", "source"),
    [
        (["--json-object"], ConstraintKind.JSON_OBJECT, ""),
        (["--regex", "a+"], ConstraintKind.REGEX, "a+"),
        (["--choice", "a", "--choice", "b"], ConstraintKind.CHOICE, '["a", "b"]'),
        (["--grammar", "start: X"], ConstraintKind.GRAMMAR, "start: X"),
    ],
)
async def test_constraints(front: Front, flags: list[str], kind: ConstraintKind, source: str) -> None:
    engine = asyncio.create_task(answered(front, "x"))
    await tandem("generate", "--prompt", "x", "--address", front.address, *flags)
    constraint = (await engine).sampling.constraint
    assert constraint is not None and (constraint.kind, constraint.source) == (kind, source)


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--logit-bias", "5"), ("--allowed-token-ids", "a"), ("--json-schema", "@/nowhere"), ("--logit-bias", "x=1")],
)
async def test_a_flag_that_cannot_be_read_is_named(front: Front, flag: str, value: str) -> None:
    done = await tandem("generate", "--prompt", "x", "--address", front.address, flag, value)
    assert done.exit_code == 2 and flag in done.stderr
    assert front.engine.drain() == []


async def test_several_sequences_are_written_one_after_another(front: Front) -> None:
    async def engine() -> None:
        submit = await front.engine.submit()
        for index in (1, 0):
            front.engine.say(submit, f"text {index}", [5], index=index)
            front.engine.end(submit, FinishReason.STOP, index=index)

    running = asyncio.create_task(engine())
    done = await tandem("generate", "--prompt", "x", "--address", front.address, "--n", "2")
    await running
    assert done.stdout == "[0]\ntext 0\n[1]\ntext 1\n"


@pytest.mark.parametrize("mode", ["--stream", "--no-stream"])
async def test_logprobs_of_the_prompt_are_shown(front: Front, mode: str) -> None:
    async def engine() -> Submit:
        submit = await front.engine.submit()
        world = TokenLogprobs((Candidate(905, -1.5, 2, b" world"),))
        front.engine.batch(deltas=(_delta(submit, (world,)),))
        front.engine.end(submit, FinishReason.STOP)
        return submit

    running = asyncio.create_task(engine())
    flags = ["--prompt-logprobs", "0", mode]
    done = await tandem("generate", "--prompt", "Hello world", "--address", front.address, *flags)
    assert (await running).sampling.prompt_logprobs == 0
    lines = sorted(done.stdout.splitlines(), key=len)
    assert lines == ["!", "  -1.5000      2  ' world'", "        -      -  (the first token of the prompt)"]


def _delta(submit: Submit, prompt: tuple[TokenLogprobs, ...]) -> TextDelta:
    identity = submit.identity
    return TextDelta(identity.request, identity.incarnation, 0, "!", columns.pack([5]), (), prompt)


async def test_a_chat_shows_the_tools_that_the_model_calls(front: Front, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(TOOLS))
    call = '{"name": "weather", "arguments": {"city": "Rom"}}'
    engine = asyncio.create_task(answered(front, call))
    flags = ["--tools", f"@{tools}", "--tool-choice", "weather", "--no-parallel-tool-calls"]
    done = await tandem("chat", "--once", "hi", "--address", front.address, *flags)
    assert done.stdout.split("\n", 1)[1] == 'weather({"city": "Rom"})\n'
    constraint = (await engine).sampling.constraint
    assert constraint is not None and json.loads(constraint.source)["properties"]["name"] == {"const": "weather"}


async def test_a_conversation_goes_on_with_what_the_tools_answer(front: Front) -> None:
    async def engine() -> list[Submit]:
        call = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
        return [await answered(front, text) for text in (call, "Sunny.")]

    running = asyncio.create_task(engine())
    flags = ["--tools", json.dumps(TOOLS)]
    done = await tandem("chat", "--address", front.address, *flags, typed="How is it?\nsun, 30 C\n/exit\n")
    first, second = await running
    assert done.stdout == "\nweather({})\nSunny.\n"
    assert columns.length(second.prompt_tokens) > columns.length(first.prompt_tokens)
