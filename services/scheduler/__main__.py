"""The scheduler process: settings, links, and turns until it is told to stop or a peer falls silent."""

import time
from functools import partial

import structlog

from services.runtime import instances, process
from services.runtime.collector import keep_loaded
from services.runtime.lifecycle import Stop, run
from services.runtime.settings import ServerSettings
from services.scheduler.service import SchedulerLinks, SchedulerService
from services.wire.links import Poller, finish, open_inlet, open_outlet, open_renewable_outlet
from services.wire.liveness import Heart
from services.wire.topology import FEEDBACK, PLAN, RESULT, STATUS, SUBMIT, TOKENS

POLL_AT_LEAST_S = 0.5  # heartbeats and silence are looked at this often
FLUSH_S = 1.0  # how long the last words may take to leave


class PeerSilentError(Exception):
    """A peer that had been heard is no longer heard."""


def body(settings: ServerSettings, stop: Stop) -> None:
    """Serve until stopped; raises PeerSilentError when the detokenizer or a gateway dies, or no executor comes back."""
    at = settings.links
    topology = process.topology(at)
    submit = open_inlet(SUBMIT, topology.bound_address(SUBMIT))
    result = open_inlet(RESULT, topology.bound_address(RESULT))
    feedback = open_inlet(FEEDBACK, topology.bound_address(FEEDBACK))
    links = SchedulerLinks(
        submit=submit,
        result=result,
        feedback=feedback,
        plan=open_renewable_outlet(PLAN, topology.address(PLAN), at.high_water_mark),
        tokens=open_outlet(TOKENS, topology.address(TOKENS), at.high_water_mark),
        status={
            gateway: open_outlet(STATUS, topology.address(STATUS, gateway), at.high_water_mark)
            for gateway in at.gateways
        },
    )
    poller = Poller(submit, result, feedback)
    stop.on_set(poller.waker().wake)
    tell_lost = partial(instances.tell_lost, at.run_dir)
    service = SchedulerService(settings.scheduler, links, time.monotonic_ns, tell_lost)
    heart = Heart(links.outlets(), at.heartbeat_s, process.sign_of_life(at.run_dir, "scheduler"))
    keep_loaded()
    structlog.get_logger().info("service.ready")
    try:
        _serve(service, poller, heart, at.death_s, stop)
    finally:
        finish(FLUSH_S)


def _serve(service: SchedulerService, poller: Poller, heart: Heart, death_s: float, stop: Stop) -> None:
    while not stop.is_set:
        heart.beat(time.monotonic())
        service.turn()
        dead = service.silent_peer(time.monotonic(), death_s)
        if dead:
            service.tell_dead(f"the {dead} is gone")
            raise PeerSilentError(dead)
        until_event = max(0.0, (service.next_event_ns() - time.monotonic_ns()) / 1e9)
        poller.wait(min(until_event, POLL_AT_LEAST_S))


if __name__ == "__main__":
    run("scheduler", body)
