"""`tandem status` and `tandem admin` against a gateway with a scripted engine: what they say, order, and refuse."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio
from typer.testing import CliRunner, Result

from services.tokenizer import Tokenizer
from services.wire.messages import ControlVerb
from tandem import errors
from tandem.cli import app
from tandem.operators import Operator
from tests.unit.gateway.rig import eventually
from tests.unit.gateway.test_control import LOAD, Desk, desk

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def there(tokenizer: Tokenizer) -> AsyncIterator[Desk]:
    async with desk(tokenizer) as made:
        made.front.engine.tell(LOAD)
        await eventually(lambda: made.front.server.gateway.engine.load is not None)
        yield made


async def tandem(*arguments: str) -> Result:
    """Run the command beside the gateway's loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))


async def ordered(there: Desk, *arguments: str, num_affected: int = 0) -> tuple[Result, ControlVerb, str]:
    """What a command says when the scheduler has done what it was ordered, and what that was."""
    address = there.front.server.operations.admin_address
    command = asyncio.ensure_future(tandem("admin", "--address", address, *arguments))
    order = await there.ordered(num_affected)
    return await command, order.verb, order.argument


async def test_status_says_what_a_server_is_and_does(there: Desk) -> None:
    done = await tandem("status", "--address", there.front.server.operations.admin_address)
    assert done.exit_code == 0
    assert f"gateway-0 at {there.front.address}: ready" in done.stdout
    assert "smol: fake float32, context 512 tokens" in done.stdout
    assert "0 calls open; 2 running, 3 waiting, KV 75%" in done.stdout


async def test_status_as_json_is_the_whole_answer(there: Desk) -> None:
    done = await tandem("status", "--address", there.front.server.operations.admin_address, "--json")
    told = json.loads(done.stdout)
    assert (told["state"], told["model"]["name"], told["load"]["num_waiting"]) == ("SERVER_STATE_READY", "smol", 3)


async def test_orders_are_given_and_their_outcome_is_said(there: Desk) -> None:
    done, verb, _ = await ordered(there, "flush", num_affected=7)
    assert (done.stdout, verb) == ("7 KV blocks given up\n", ControlVerb.FLUSH_CACHE)
    done, verb, _ = await ordered(there, "cancel", "--all", num_affected=2)
    assert (done.stdout, verb) == ("2 calls cancelled\n", ControlVerb.CANCEL_ALL)
    for command, wanted in (("pause", ControlVerb.PAUSE), ("resume", ControlVerb.RESUME)):
        done, verb, _ = await ordered(there, command)
        assert (done.exit_code, verb) == (0, wanted)
    done, verb, argument = await ordered(there, "log-level", "info", "--service", "executor")
    assert (done.exit_code, verb, argument) == (0, ControlVerb.LOG_LEVEL, "info executor")
    done, verb, _ = await ordered(there, "drain")
    assert (done.stdout, verb) == ("draining, 0 calls open\n", ControlVerb.DRAIN)


async def test_ids_that_are_unknown_are_named(there: Desk) -> None:
    address = there.front.server.operations.admin_address
    done = await tandem("admin", "--address", address, "cancel", "nobody")
    assert (done.stdout, done.stderr) == ("0 calls cancelled\n", "no open call has the id nobody\n")


async def test_a_wrong_order_is_one_line_and_exit_2(there: Desk) -> None:
    done = await tandem("admin", "--address", there.front.server.operations.admin_address, "log-level", "loud")
    assert done.exit_code == 2 and "level: must be one of" in done.stderr


@pytest.fixture
def runtime_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's servers have their folders."""
    folder = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


def folder_of(runtime_dir: Path, name: str, address: str) -> None:
    (runtime_dir / f"tandem-{name}").mkdir()
    (runtime_dir / f"tandem-{name}" / "gateway-0.admin").write_text(address)


async def test_the_one_server_that_runs_here_is_found(there: Desk, runtime_dir: Path) -> None:
    folder_of(runtime_dir, "killed", f"unix:{runtime_dir}/tandem-killed/admin")
    folder_of(runtime_dir, "runs", there.front.server.operations.admin_address)
    done = await tandem("status")
    assert done.exit_code == 0 and "smol" in done.stdout


async def test_none_or_several_are_a_question(there: Desk, runtime_dir: Path) -> None:
    done = await tandem("status")
    assert done.exit_code == 2 and "no server of yours runs here" in done.stderr
    address = there.front.server.operations.admin_address
    folder_of(runtime_dir, "one", address)
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        path = f"{runtime_dir}/tandem-two.sock"
        listener.bind(path)
        listener.listen()
        folder_of(runtime_dir, "two", f"unix:{path}")
        done = await tandem("status")
    assert done.exit_code == 2 and f"choose one with --address: {address}, unix:{path}" in done.stderr


async def test_the_load_is_watched_until_the_watcher_leaves(there: Desk) -> None:
    with Operator(there.front.server.operations.admin_address) as operator:
        loads = operator.watch_load(0.1)
        for _ in range(2):
            first = asyncio.ensure_future(asyncio.to_thread(next, loads))
            await there.give_load(LOAD)
            assert (await first).num_waiting == 3
        loads.close()


async def test_nobody_there_is_unavailable() -> None:
    with Operator("127.0.0.1:1") as operator, pytest.raises(errors.Unavailable):
        await asyncio.to_thread(operator.server_info)
