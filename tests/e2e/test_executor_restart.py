"""The executor dies under running streams: they pause and go on, with the tokens they would have had."""

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem import Client, TokenLogprobs, errors
from tests.e2e.processes import Server, Settings, server
from tests.e2e.readers import Reader, Readers, reading

NUM_STREAMS = 32
# Between two deaths every stream gets so many tokens: a request that no executor survives is ended, and rightly so.
BETWEEN_DEATHS = 10
TIE = 1e-3
SERVING = health_pb2.HealthCheckResponse.SERVING
# Steps so long that readers keep up: a stream that has ended for the engine must not look alive to a test.
SIMULATED: Settings = {
    "executor": {"backend": "simulated", "num_blocks": 2048, "step_fixed_us": 15_000.0},
    "gateway": {"listen": "127.0.0.1:0", "drain_s": 1.0},
    "links": {"death_s": 30.0},  # a loaded machine must not look like a death
}


def with_executor(**settings: int) -> Settings:
    return {**SIMULATED, "executor": {**SIMULATED["executor"], **settings}}


def prompts(seed: int, longest: int) -> list[list[int]]:
    """Token ids of many lengths."""
    chance = random.Random(seed)
    return [[chance.randrange(100, 40_000) for _ in range(chance.randint(1, longest))] for _ in range(NUM_STREAMS)]


@contextmanager
def ready_server(settings: Settings) -> Iterator[tuple[Server, Client]]:
    with server(settings) as one, Client(one.wait_ready()) as client:
        yield one, client


def kill_executor(one: Server) -> None:
    """As the kernel does when memory is out. Waits until it is gone, so that the next one can be told from it."""
    victim = one.services()["executor"]
    victim.kill()
    victim.wait()


def kill_under(one: Server, readers: Readers, times: int) -> None:
    """Kill the executor so often, each time once it is at work and every stream has got further."""
    for number in range(1, times + 1):
        wait_for_executor(one, number)
        readers.wait_for(BETWEEN_DEATHS)
        assert not any(reader.is_over for reader in readers.readers), "the streams are too short"
        kill_executor(one)


def instances(one: Server) -> set[int]:
    """The executors there have been so far."""
    return {ready["instance"] for ready in one.entries("executor.ready")}


def wait_for_executor(one: Server, number: int) -> None:
    """Until there have been so many."""
    one.wait_for(lambda: len(instances(one)) == number)


def ends(one: Server, code: int) -> None:
    assert one.wait_end() == code, one.log.read_text()
    assert one.entries("server.stopped")[-1]["exit_code"] == code


def test_three_deaths_change_no_token_and_end_no_call() -> None:
    options = {"max_tokens": 100, "ignore_eos": True, "seed": 7}
    with ready_server(SIMULATED) as (one, client):
        with reading(client, prompts(1, 200), 120.0, **options) as readers:
            undisturbed = readers.outputs()
        with reading(client, prompts(1, 200), 120.0, **options) as readers:
            kill_under(one, readers, 3)
            assert readers.outputs() == undisturbed
        assert {len(tokens) for tokens in undisturbed} == {100}
        assert [death["cause"] for death in one.entries("service.died")] == ["signal SIGKILL"] * 3
        assert len(instances(one)) == 4
        one.stop()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_three_deaths_change_no_token_of_the_real_model() -> None:
    options = {"max_tokens": 64, "ignore_eos": True, "temperature": 0, "logprobs": 2}
    settings = {**SIMULATED, "executor": {"num_blocks": 2048}, "links": {"death_s": 120.0}}
    with ready_server(settings) as (one, client):
        with reading(client, prompts(2, 100), 800.0, **options) as readers:
            readers.wait_over()
            undisturbed = readers.readers
        with reading(client, prompts(2, 100), 800.0, **options) as readers:
            kill_under(one, readers, 3)
            readers.wait_over()
        assert [differs(was, now) for was, now in zip(undisturbed, readers.readers, strict=True)] == [""] * NUM_STREAMS
        one.stop()


def differs(was: Reader, now: Reader) -> str:
    """How the second reading differs from the first. Where two tokens are as likely, either is right."""
    if was.error or now.error:
        return f"{was.error}, {now.error}"
    for index, (first, second) in enumerate(zip(was.token_ids, now.token_ids, strict=True)):
        if first != second:
            return "" if is_tie(was.logprobs[index]) else f"token {index} is {second}, not {first}"
    return ""


def is_tie(logprobs: TokenLogprobs | None) -> bool:
    assert logprobs is not None
    best, next_best = logprobs.top
    return best.logprob - next_best.logprob < TIE


def test_while_there_is_no_executor_calls_are_taken_and_the_server_is_healthy() -> None:
    with ready_server(SIMULATED) as (one, client), grpc.insecure_channel(one.address()) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        with reading(client, [[5]], 60.0, max_tokens=150, ignore_eos=True, seed=7) as readers:
            readers.wait_for(1)
            kill_executor(one)
            assert health.Check(health_pb2.HealthCheckRequest()).status == SERVING
            with pytest.raises(errors.DeadlineExceeded):
                client.generate([6], max_tokens=1, timeout_s=0.05)
            assert client.generate([6], max_tokens=3, ignore_eos=True).usage.completion_tokens == 3
            assert [len(tokens) for tokens in readers.outputs()] == [150]
        one.stop()


def test_more_deaths_than_allowed_end_every_call_and_then_the_server() -> None:
    with ready_server(with_executor(max_restarts=1)) as (one, client):
        with reading(client, prompts(3, 20), 60.0, max_tokens=1500, ignore_eos=True) as readers:
            kill_under(one, readers, 2)
            readers.wait_over()
            assert {type(reader.error) for reader in readers.readers} == {errors.EngineDead}
        ends(one, 1)
        assert len(one.entries("service.died")) == 2
        (reason,) = one.entries("executor.not_restarted")
        assert "no more than 1 restarts" in reason["reason"]


def test_an_executor_that_hangs_is_killed_and_replaced() -> None:
    settings = {**SIMULATED, "links": {"heartbeat_s": 0.2, "death_s": 2.0}}
    with ready_server(settings) as (one, client):
        with reading(client, [[5], [6, 7]], 60.0, max_tokens=100, ignore_eos=True, seed=7) as readers:
            undisturbed = readers.outputs()
        with reading(client, [[5], [6, 7]], 60.0, max_tokens=100, ignore_eos=True, seed=7) as readers:
            readers.wait_for(BETWEEN_DEATHS)
            one.services()["executor"].suspend()
            assert readers.outputs() == undisturbed
        (lost,) = one.entries("executor.lost")
        assert lost["why"] == "silent"
        assert [death["cause"] for death in one.entries("service.died")] == ["signal SIGKILL"]
        one.stop()


def test_a_stopping_server_lets_calls_finish_on_another_executor() -> None:
    settings = {**SIMULATED, "gateway": {"listen": "127.0.0.1:0", "drain_s": 60.0}}
    with ready_server(settings) as (one, client):
        with reading(client, [[5], [6]], 60.0, max_tokens=100, ignore_eos=True) as readers:
            readers.wait_for(1)
            one.process.send_signal(signal.SIGTERM)
            one.wait_for(lambda: bool(one.entries("server.stopping")))
            kill_executor(one)
            assert [len(tokens) for tokens in readers.outputs()] == [100, 100]
        ends(one, 0)


def test_asked_to_stop_while_the_next_executor_is_due_it_stops() -> None:
    with ready_server(SIMULATED) as (one, _):
        kill_executor(one)
        one.wait_for(lambda: bool(one.entries("executor.restarting")))
        one.stop()


def test_an_executor_that_dies_before_it_was_ever_ready_ends_the_server() -> None:
    with server({**SIMULATED, "executor": {"backend": "torch"}}) as one:
        one.services()["executor"].kill()  # torch alone takes longer to load than this takes to happen
        ends(one, 1)
        (reason,) = one.entries("executor.not_restarted")
        assert reason["reason"] == "it was never ready"
