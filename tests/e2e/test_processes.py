"""Whatever happens to the processes of a server, every call ends with a status, and nothing is left behind."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from services.runtime.run_dir import open_run_dir
from services.runtime.supervisor import MODULES
from tandem import NO_RETRIES, Chunk, Client, Stream, TandemError, errors
from tests.e2e.processes import Server, Settings, server

# A token takes 2 ms, so that a long stream outlasts whatever a test does to it. An executor that dies ends the server
# like any other process here; test_executor_restart.py has those that are replaced.
ECHO: Settings = {
    "executor": {"backend": "echo", "step_fixed_us": 2000.0, "max_restarts": 0},
    "scheduler": {"max_num_seqs": 4},
    "gateway": {"listen": "127.0.0.1:0", "drain_s": 1.0},
}
# A call that is not told of a death ends here, and then with another status.
TOLD_WITHIN_S = 6.0
LONG = 8000
NUM_RUNNING, NUM_WAITING = 4, 2


@contextmanager
def open_streams(client: Client) -> Iterator[list[Stream[Chunk]]]:
    """Streams that have begun, and behind them some that wait for a place."""
    with ExitStack() as stack:
        streams = []
        for number in range(NUM_RUNNING + NUM_WAITING):
            stream = client.stream_generate([number + 5], max_tokens=LONG, timeout_s=TOLD_WITHIN_S)
            streams.append(stack.enter_context(stream))
            if number < NUM_RUNNING:
                next(stream)
        yield streams


def asking(one: Server) -> Client:
    """A client that takes the first answer it gets."""
    return Client(one.wait_ready(), retries=NO_RETRIES)


def ends(streams: list[Stream[Chunk]]) -> list[type[TandemError]]:
    """How each stream fails; none may end well."""
    kinds = []
    for stream in streams:
        with pytest.raises(TandemError) as failure:
            for _ in stream:
                pass
        kinds.append(failure.type)
    return kinds


def assert_stopped(one: Server, code: int = 0) -> None:
    """It ends with this exit code and says so."""
    assert one.wait_end() == code, one.log.read_text()
    assert one.entries("server.stopped")[-1]["exit_code"] == code


@pytest.mark.parametrize("victim", ["executor", "scheduler", "detokenizer"])
def test_a_killed_service_ends_every_call_and_then_the_server(victim: str) -> None:
    with server(ECHO) as one, asking(one) as client, open_streams(client) as streams:
        services = one.services()
        assert services.keys() == MODULES.keys()
        services[victim].kill()
        assert ends(streams) == [errors.EngineDead] * len(streams)
        # A call that comes while the port is being closed is reset by gRPC itself.
        with pytest.raises((errors.Unavailable, errors.Cancelled)):
            client.generate([5], max_tokens=1, timeout_s=TOLD_WITHIN_S)
        assert_stopped(one, 1)
        (death,) = one.entries("service.died")
        assert (death["name"], death["cause"]) == (victim, "signal SIGKILL")


def test_a_killed_gateway_ends_every_call_and_then_the_server() -> None:
    with server(ECHO) as one, asking(one) as client, open_streams(client) as streams:
        one.services()["gateway"].kill()
        assert {issubclass(kind, errors.Unavailable) for kind in ends(streams)} == {True}
        assert_stopped(one, 1)
        (death,) = one.entries("service.died")
        assert (death["name"], death["cause"]) == ("gateway", "signal SIGKILL")


@pytest.mark.parametrize(
    "victim",
    [
        "executor",
        pytest.param("scheduler", marks=pytest.mark.soak),
        pytest.param("detokenizer", marks=pytest.mark.soak),
    ],
)
def test_a_service_that_hangs_is_taken_for_dead(victim: str) -> None:
    settings = {**ECHO, "links": {"heartbeat_s": 0.2, "death_s": 2.0}}
    with server(settings) as one, asking(one) as client, open_streams(client) as streams:
        one.services()[victim].suspend()
        assert ends(streams) == [errors.EngineDead] * len(streams)
        assert_stopped(one, 1)
        if victim == "executor":
            assert len(one.entries("executor.lost")) == len(one.entries("executor.hangs")) == 1
        else:
            assert {entry["peer"] for entry in one.entries("peer.silent")} == {victim}


@pytest.mark.parametrize("victim", ["detokenizer", "gateway"])
def test_a_service_that_was_stopped_for_a_moment_loses_nothing(victim: str) -> None:
    with server({**ECHO, "links": {"death_s": 30.0}}) as one, asking(one) as client:
        process = one.services()[victim]
        with client.stream_generate([5, 6, 7], max_tokens=900, ignore_eos=True, return_token_ids=True) as stream:
            tokens = list(next(stream).token_ids)
            process.suspend()
            time.sleep(1.0)  # some five hundred tokens are made meanwhile
            process.resume()
            tokens += [token for chunk in stream for token in chunk.token_ids]
        assert tokens == [5, 6, 7] * 300
        one.process.send_signal(signal.SIGTERM)
        assert_stopped(one)


def test_asked_to_stop_it_lets_calls_finish_and_ends_those_that_would_not() -> None:
    settings = {**ECHO, "gateway": {**ECHO["gateway"], "drain_s": 2.0}}
    with server(settings) as one, asking(one) as client:
        short = client.stream_generate([5], max_tokens=100, ignore_eos=True)
        long = client.stream_generate([6], max_tokens=LONG, ignore_eos=True, timeout_s=TOLD_WITHIN_S)
        next(short), next(long)
        one.process.send_signal(signal.SIGTERM)
        *_, last = short
        assert last.finish is not None
        assert ends([long]) == [errors.Draining]
        assert_stopped(one)


def test_a_signal_to_the_whole_group_stops_it_in_order() -> None:
    with server(ECHO) as one, asking(one) as client, open_streams(client) as streams:
        os.killpg(one.process.pid, signal.SIGTERM)
        assert set(ends(streams)) == {errors.Draining}
        assert_stopped(one)


def test_interrupted_twice_it_ends_at_once() -> None:
    patient = {**ECHO, "gateway": {**ECHO["gateway"], "drain_s": 3600.0}}
    with server(patient) as one, asking(one) as client, open_streams(client) as streams:
        one.process.send_signal(signal.SIGINT)
        one.wait_for(lambda: bool(one.entries("server.stopping")))
        one.process.send_signal(signal.SIGINT)
        assert {issubclass(kind, errors.Unavailable) for kind in ends(streams)} == {True}
        assert_stopped(one)


@pytest.mark.parametrize("delay_s", [0.0, 0.4])
def test_asked_to_stop_while_it_starts_it_stops(delay_s: float) -> None:
    with server(ECHO) as one:
        one.services()
        time.sleep(delay_s)
        one.process.send_signal(signal.SIGTERM)
        assert_stopped(one)


def test_a_killed_supervisor_leaves_no_process_and_its_folder_to_the_next() -> None:
    with server(ECHO) as one, asking(one) as client, open_streams(client) as streams:
        one.process.kill()
        one.process.wait()
        assert {issubclass(kind, errors.Unavailable) for kind in ends(streams)} == {True}
        one.wait_alone()
        assert one.remains() != []
        with open_run_dir("", one.root):
            pass
        assert one.remains() == []
