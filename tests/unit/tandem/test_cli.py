"""The command against a real gateway with a scripted engine: what it writes, where, and how it ends."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest
import trustme
from typer.testing import CliRunner, Result

from services.runtime import access
from services.tokenizer import Tokenizer
from services.wire import columns
from services.wire.messages import FailureReason, FinishReason, Submit
from tandem.cli import app
from tests.unit.gateway.rig import SETTINGS, Front, running
from tests.unit.gateway.test_calls import LOGPROBS

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOWHERE = "127.0.0.1:1"


async def tandem(*arguments: str, typed: str = "") -> Result:
    """Run the command beside the gateway's loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments), typed)


async def answered(front: Front, *texts: str) -> Submit:
    submit = await front.engine.submit()
    for text in texts:
        front.engine.say(submit, text, [5], logprobs=[LOGPROBS] if submit.output.logprobs else ())
    front.engine.end(submit, FinishReason.STOP)
    return submit


async def test_generate_streams_its_text(front: Front) -> None:
    engine = asyncio.create_task(answered(front, "Par", "is"))
    options = ["--max-tokens", "9", "--temperature", "0", "--top-k", "3", "--top-p", "0.5", "--min-p", "0.1"]
    more = ["--seed", "7", "--stop", "A", "--stop", "B", "--min-tokens", "1", "--ignore-eos"]
    done = await tandem("generate", "--prompt", "Hello world", "--address", front.address, *options, *more)
    assert (done.exit_code, done.stdout) == (0, "Paris\n")
    submit = await engine
    sampling, stopping = submit.sampling, submit.stopping
    assert columns.unpack(submit.prompt_tokens).tolist() == [19556, 905]
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.0, 3, 0.5, 0.1)
    assert (stopping.max_tokens, stopping.min_tokens, stopping.stop_strings) == (9, 1, ("A", "B"))
    assert (stopping.stop_token_ids, submit.seed) == (b"", 7)


async def test_generate_asks_for_nothing_that_was_not_given(front: Front) -> None:
    engine = asyncio.create_task(answered(front, "x"))
    await tandem("generate", "--prompt", "x", "--address", front.address)
    submit = await engine
    assert (submit.sampling.temperature, submit.stopping.max_tokens, submit.output.logprobs) == (1.0, None, False)


@pytest.mark.parametrize("mode", ["--stream", "--no-stream"])
async def test_generate_shows_logprobs_and_cost(front: Front, mode: str) -> None:
    engine = asyncio.create_task(answered(front, "x"))
    done = await tandem("generate", "--prompt", "x", "--address", front.address, mode, "--logprobs", "1", "--usage")
    await engine
    text, token = done.stdout.splitlines()
    assert text == "x"
    assert token.split() == ["-2.5000", "3", "b'\\xe2\\x80'", "'é'", "-0.500"]
    assert "1 prompt (1 cached) + 2 output tokens" in done.stderr and "seed" in done.stderr


async def test_generate_reads_what_is_piped_in(front: Front) -> None:
    engine = asyncio.create_task(answered(front, "x"))
    done = await tandem("generate", "--address", front.address, typed="Hello world")
    assert done.exit_code == 0
    assert columns.unpack((await engine).prompt_tokens).tolist() == [19556, 905]


async def test_bad_input_names_the_field_and_exits_2(front: Front) -> None:
    for flag, value, field in (
        ("--temperature", "nan", "sampling.temperature"),
        ("--max-tokens", "0", "stopping.max_tokens"),
        ("--seed", "-1", "seed"),
        ("--stop", "", "stopping.stop[0]"),
    ):
        done = await tandem("generate", "--prompt", "x", "--address", front.address, flag, value)
        assert (done.exit_code, done.stdout) == (2, "")
        assert field in done.stderr and len(done.stderr.splitlines()) == 1
    assert front.engine.drain() == []


@pytest.mark.parametrize("command", [("generate", "--prompt", "x"), ("chat", "--once", "x"), ("models",)])
async def test_no_server_is_one_line_and_exit_1(command: tuple[str, ...]) -> None:
    done = await tandem(*command, "--address", NOWHERE)
    assert (done.exit_code, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1 and NOWHERE in done.stderr and "tandem serve" in done.stderr


async def test_a_failure_in_mid_stream_keeps_the_text_and_exits_1(front: Front) -> None:
    async def fails() -> None:
        submit = await front.engine.submit()
        front.engine.say(submit, "half", [5])
        front.engine.fail(submit, FailureReason.QUEUE_FULL, detail="no room", retry_after_ms=2000)

    engine = asyncio.create_task(fails())
    done = await tandem("generate", "--prompt", "x", "--address", front.address)
    await engine
    assert (done.exit_code, done.stdout) == (1, "half\n")
    assert done.stderr == "tandem: no room (try again in 2 s)\n"


async def test_chat_once_is_greedy_and_goes_through_the_template(front: Front) -> None:
    engine = asyncio.create_task(answered(front, "The capital", " of France is Paris."))
    done = await tandem("chat", "--once", "hi", "--system", "Be brief.", "--address", front.address)
    assert (done.exit_code, done.stdout) == (0, "The capital of France is Paris.\n")
    submit = await engine
    assert submit.sampling.temperature == 0.0
    assert columns.unpack(submit.prompt_tokens).tolist().count(2) == 2


async def test_a_conversation_remembers_and_forgets(front: Front) -> None:
    async def three() -> list[int]:
        return [len(columns.unpack((await answered(front, "yes")).prompt_tokens)) for _ in range(3)]

    engine = asyncio.create_task(three())
    typed = "one\n\ntwo\n/clear\none\n/exit\nnever\n"
    done = await tandem("chat", "--address", front.address, typed=typed)
    first, second, third = await engine
    assert done.exit_code == 0
    assert done.stdout.count("yes\n") == 3
    assert first < second and third == first


async def test_a_bad_question_does_not_end_the_conversation(front: Front) -> None:
    engine = asyncio.create_task(answered(front, "fine"))
    done = await tandem("chat", "--address", front.address, typed="word " * 600 + "\nshort\n")
    await engine
    assert done.exit_code == 0
    assert "exceed" in done.stderr or "no room" in done.stderr
    assert done.stdout.count("fine\n") == 1


async def test_ctrl_c_ends_a_stream_in_peace(front: Front) -> None:
    """In a process of its own, as a shell would run it in front: one in the background is born deaf to the signal."""
    hears = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        f"{hears}; from tandem.cli import main; main()",
        *("generate", "--prompt", "x", "--address", front.address),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout
    submit = await front.engine.submit()
    front.engine.say(submit, "half", [5])
    assert await process.stdout.read(4) == b"half"
    process.send_signal(signal.SIGINT)
    _, complaint = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, complaint) == (130, b"")
    assert (await front.engine.cancel()).identity == submit.identity


async def test_models_and_version(front: Front) -> None:
    done = await tandem("models", "--address", front.address)
    assert done.exit_code == 0
    assert "smol: fake float32, context 512 tokens" in done.stdout and "max_n = 4" in done.stdout
    assert (await tandem("--version")).stdout.startswith("tandem ")


async def test_the_commands_of_clients_show_a_token_and_read_certificates(tokenizer: Tokenizer, tmp_path: Path) -> None:
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    pems = {"ca": ca.cert_pem.bytes(), "key": issued.private_key_pem.bytes(), "cert": issued.cert_chain_pems[0].bytes()}
    at = {name: tmp_path / name for name in (*pems, "tokens")}
    for name, pem in pems.items():
        at[name].write_bytes(pem)
    at["tokens"].write_text(f'[[token]]\nname = "a"\nsha256 = "{access.digest("secret")}"\n')
    settings = msgspec.structs.replace(
        SETTINGS, tls_certificate=str(at["cert"]), tls_key=str(at["key"]), tokens=str(at["tokens"])
    )
    async with running(tokenizer, settings) as front:
        arguments = ["--address", front.address, "--tls-ca", str(at["ca"])]
        for command in (["generate", "--prompt", "x"], ["chat", "--once", "x"], ["models"]):
            denied = await tandem(*command, *arguments)
            assert (denied.exit_code, "no token" in denied.stderr) == (1, True)
        engine = asyncio.create_task(answered(front, "Paris"))
        done = await tandem("generate", "--prompt", "x", *arguments, "--token", "secret")
        assert done.stdout == "Paris\n"
        await engine
        shown = await asyncio.to_thread(CliRunner().invoke, app, ["models", *arguments], env={"TANDEM_TOKEN": "secret"})
        assert shown.exit_code == 0 and "smol" in shown.stdout
        wrong = await tandem("models", "--address", front.address, "--tls-ca", str(tmp_path / "absent"))
        assert (wrong.exit_code, "absent" in wrong.stderr) == (2, True)
