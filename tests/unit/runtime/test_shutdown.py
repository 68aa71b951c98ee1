"""The order in which a server goes down, whatever happens in between."""

import math
import random
from signal import SIGKILL, SIGTERM, SIGUSR1

import pytest

from services.runtime.shutdown import Patience, Phase, Send, Shutdown

SERVICES = ("detokenizer", "executor", "gateway", "scheduler")
BEHIND = ("detokenizer", "executor", "scheduler")
PATIENCE = Patience(drain_s=30.0, abort_s=3.0, stop_s=2.0)


@pytest.fixture
def server() -> Shutdown:
    return Shutdown(set(SERVICES), "gateway", PATIENCE)


def _terms(*services: str) -> list[Send]:
    return [Send(service, SIGTERM) for service in services]


def _kills(*services: str) -> list[Send]:
    return [Send(service, SIGKILL) for service in services]


def _end_all(server: Shutdown, code: int = 0) -> None:
    for service in sorted(server.alive):
        server.ended(service, code, 100.0)


def test_a_server_that_runs_waits_for_nothing(server: Shutdown) -> None:
    assert server.deadline == math.inf
    assert server.pass_time(1e9) == []
    assert not server.is_over


def test_asked_to_stop_it_drains_the_gateway_and_then_the_others_go(server: Shutdown) -> None:
    assert server.ask(10.0) == _terms("gateway")
    assert server.deadline == 40.0
    assert server.ended("gateway", 0, 15.0) == _terms(*BEHIND)
    assert server.deadline == 17.0
    _end_all(server)
    assert (server.is_over, server.exit_code) == (True, 0)


def test_calls_may_go_on_until_the_gateway_is_told_to_end_them(server: Shutdown) -> None:
    assert server.is_serving
    server.ask(10.0)
    assert server.is_serving
    server.ended("gateway", 0, 15.0)
    assert not server.is_serving


def test_after_a_death_no_call_goes_on(server: Shutdown) -> None:
    server.ended("scheduler", 1, 10.0)
    assert not server.is_serving


def test_asked_twice_it_kills_everything_at_once(server: Shutdown) -> None:
    server.ask(10.0)
    assert server.ask(10.1) == _kills(*SERVICES)
    _end_all(server, -SIGKILL)
    assert (server.is_over, server.exit_code) == (True, 0)


def test_a_gateway_asked_before_it_could_listen_has_not_failed(server: Shutdown) -> None:
    server.ask(10.0)
    assert server.ended("gateway", -SIGTERM, 10.1) == _terms(*BEHIND)
    assert server.exit_code == 0


def test_a_gateway_that_fails_while_it_drains_has_failed(server: Shutdown) -> None:
    server.ask(10.0)
    assert server.ended("gateway", 1, 10.1) == _terms(*BEHIND)
    assert server.exit_code == 1


def test_a_gateway_that_does_not_end_its_drain_is_killed_and_nobody_has_failed(server: Shutdown) -> None:
    server.ask(10.0)
    assert server.pass_time(39.9) == []
    assert server.pass_time(40.0) == [*_kills("gateway"), *_terms(*BEHIND)]
    assert server.ended("gateway", -SIGKILL, 40.1) == []
    _end_all(server)
    assert server.exit_code == 0


def test_who_does_not_go_when_asked_is_killed(server: Shutdown) -> None:
    server.ask(10.0)
    server.ended("gateway", 0, 11.0)
    server.ended("executor", 0, 11.5)
    assert server.pass_time(12.9) == []
    assert server.pass_time(13.0) == _kills("detokenizer", "scheduler")
    assert server.pass_time(99.0) == []


@pytest.mark.parametrize("dead", BEHIND)
@pytest.mark.parametrize("code", [0, 1, -SIGKILL])
def test_a_process_that_ends_unasked_ends_the_server(server: Shutdown, dead: str, code: int) -> None:
    assert server.ended(dead, code, 10.0) == [Send("gateway", SIGUSR1)]
    assert server.deadline == 13.0
    assert server.ended("gateway", 0, 10.5) == _terms(*(service for service in BEHIND if service != dead))
    _end_all(server)
    assert (server.is_over, server.exit_code) == (True, 1)


def test_a_gateway_that_ends_unasked_takes_the_others_along(server: Shutdown) -> None:
    assert server.ended("gateway", 0, 10.0) == _terms(*BEHIND)
    assert server.exit_code == 1


def test_what_follows_from_the_first_death_changes_nothing(server: Shutdown) -> None:
    server.ended("executor", -SIGKILL, 10.0)
    assert server.ended("scheduler", 1, 10.1) == []
    assert server.pass_time(13.0) == [*_kills("gateway"), *_terms("detokenizer")]


def test_a_death_during_the_drain_turns_it_into_an_abort(server: Shutdown) -> None:
    server.ask(10.0)
    assert server.ended("executor", -SIGKILL, 20.0) == [Send("gateway", SIGUSR1)]
    assert server.deadline == 23.0
    assert server.phase is Phase.ABORTING
    assert server.exit_code == 1


def test_asked_to_stop_after_a_death_it_kills_the_rest(server: Shutdown) -> None:
    server.ended("executor", -SIGKILL, 10.0)
    assert server.ask(10.1) == _kills("detokenizer", "gateway", "scheduler")


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_every_process_is_gone_in_the_end_and_only_the_living_get_signals(seed: int) -> None:
    chance = random.Random(seed)
    server = Shutdown(set(SERVICES), "gateway", PATIENCE)
    now, pending = 0.0, dict.fromkeys(SERVICES, False)  # whether a signal that ends it is on its way
    while not server.is_over:
        now += chance.choice((0.01, 1.0, 10.0))
        deed = chance.random()
        if deed < 0.2 or now > 1000.0:
            sends = server.ask(now)
        elif deed < 0.4:
            # A process may also ignore what it is told, except for SIGKILL.
            service = chance.choice(sorted(server.alive))
            sends = server.ended(service, chance.choice((0, 1, -9)), now)
        else:
            sends = server.pass_time(now)
        assert {send.service for send in sends} <= server.alive
        pending.update({send.service: True for send in sends if send.signal == SIGKILL})
        for service in [service for service in sorted(server.alive) if pending[service] and chance.random() < 0.5]:
            sends = server.ended(service, -SIGKILL, now)
            assert {send.service for send in sends} <= server.alive
        assert now < 2000.0, "the server never ended"
