"""Servers that start, one or several, well or badly, and what they leave behind: nothing."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.runtime.settings import LinkSettings
from services.wire.topology import LINKS
from tandem import NO_RETRIES, Client, errors
from tests.e2e.processes import PATIENCE_S, Settings, server
from tests.ports import free_ports

ECHO: Settings = {"executor": {"backend": "echo"}, "gateway": {"listen": "127.0.0.1:0"}}
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("backend", "cycles"),
    [
        ("simulated", 3),
        pytest.param("echo", 200, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_servers_that_come_and_go_leave_nothing(backend: str, cycles: int) -> None:
    for _ in range(cycles):
        with server({**ECHO, "executor": {"backend": backend}}) as one, Client(one.wait_ready()) as client:
            assert client.generate([5, 6], max_tokens=4, ignore_eos=True).usage.completion_tokens == 4
            one.stop()


def test_a_server_may_use_tcp_between_its_processes_and_another_name_for_its_gateway() -> None:
    links = {"transport": "tcp", "base_port": free_ports(len(LINKS)), "gateways": ["front"]}
    with server({**ECHO, "links": links, "gateway": {**ECHO["gateway"], "name": "front"}}) as one:
        with Client(one.wait_ready()) as client:
            assert client.generate([5], max_tokens=3, ignore_eos=True).usage.completion_tokens == 3
        one.stop()


def test_four_servers_at_once_do_not_meet() -> None:
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(server({**ECHO, "model": {"name": name}})) for name in ("a", "b", "c", "d")
        }
        addresses = {name: one.wait_ready() for name, one in servers.items()}
        assert len(set(addresses.values())) == 4
        for number, (name, address) in enumerate(addresses.items()):
            with Client(address) as client:
                assert client.model().name == name
                answer = client.generate([number + 5], max_tokens=3, ignore_eos=True, return_token_ids=True)
                assert list(answer.completions[0].token_ids) == [number + 5] * 3
        for one in servers.values():
            one.stop()


def test_a_second_server_on_the_port_of_the_first_fails_at_once_and_names_it_while_the_first_serves_on() -> None:
    with server(ECHO) as first:
        listen = first.wait_ready()
        with server({**ECHO, "gateway": {"listen": listen}}) as second:
            assert second.wait_end() == 1
            (failure,) = second.entries("service.failed")
            assert (failure["service"], listen in failure["error"]) == ("gateway", True)
        with Client(listen) as client:
            assert client.generate([5], max_tokens=1).usage.completion_tokens == 1
        first.stop()


def test_a_server_that_was_killed_is_followed_by_another_in_its_folder_and_at_its_address() -> None:
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        listen = f"unix:{folder}/listen"
        settings: Settings = {
            **ECHO,
            "links": {"run_dir": f"{folder}/run"},
            "gateway": {"listen": listen, "drain_s": 1.0},
        }
        with server(settings, root=Path(folder)) as killed, Client(listen) as client:
            client.wait_until_ready(PATIENCE_S)
            killed.process.kill()
            killed.process.wait()
            killed.wait_alone()
        with server(settings, root=Path(folder)) as next_one, Client(listen) as client:
            client.wait_until_ready(PATIENCE_S)
            # One that was idle, longer than any silence between its processes may be, serves like any other.
            time.sleep(LinkSettings().death_s + 1)
            assert client.generate([5], max_tokens=2, ignore_eos=True).usage.completion_tokens == 2
            next_one.stop()


def test_a_model_that_cannot_be_loaded_ends_the_server_with_the_reason(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with server({"model": {"path": str(broken)}, "gateway": {"listen": "127.0.0.1:0"}}) as one:
        assert one.wait_end() == 1
        assert any(str(broken) in failure["error"] for failure in one.entries("service.failed")), one.log.read_text()


def test_it_is_not_serving_until_the_executor_is_there_and_then_serves_the_first_call() -> None:
    with server(ECHO) as one:
        executor = one.services()["executor"]
        executor.suspend()  # an executor that takes its time to load
        assert one.entries("executor.opened") == []
        with (
            grpc.insecure_channel(one.address()) as channel,
            Client(one.address(), retries=NO_RETRIES) as client,
        ):
            health = health_pb2_grpc.HealthStub(channel)
            states = health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S)
            assert next(states).status == NOT_SERVING
            one.wait_for(lambda: any(entry["service"] == "detokenizer" for entry in one.entries("service.ready")))
            with pytest.raises(errors.NotReady):
                client.generate([5], max_tokens=1)
            assert health.Check(health_pb2.HealthCheckRequest()).status == NOT_SERVING
            executor.resume()
            assert next(states).status == SERVING
            assert client.generate([5], max_tokens=1).usage.completion_tokens == 1
            states.cancel()
        one.stop()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--depth", "7"], "tandem serve: scheduler.depth: Expected `int` <= 3"),
        (["--listen", "nowhere"], "tandem serve: gateway.listen: expected host:port or unix:path, got 'nowhere'"),
    ],
)
def test_settings_that_cannot_be_are_one_line_and_exit_code_2(flags: list[str], message: str) -> None:
    with server(ECHO, *flags) as one:
        assert one.wait_end() == 2
        assert one.log.read_text() == f"{message}\n"


def test_a_ready_server_says_once_what_it_serves_and_how_to_call_it() -> None:
    with server(ECHO, "--num-blocks", "33", "--log-level", "error") as one:
        one.wait_for(lambda: "Tandem is ready" in one.log.read_text())
        address = one.address()
        one.stop()
        shown = one.log.read_text()
    assert shown.count("Tandem is ready") == 1
    for fact in ("echo, context 8,192 tokens", "512 tokens: 32 blocks of 16", f"tandem generate --address {address}"):
        assert fact in shown
