"""The executor process: loads its backend, opens its links, and runs steps until it is told to stop."""

import os
import time
from collections.abc import Callable

import structlog

from services.executor.backend import Backend
from services.executor.core import ExecutorCore
from services.executor.grammar import Checker, Compiler, Grammar, Vocabulary
from services.executor.grammars import Grammars
from services.executor.service import ExecutorService
from services.executor.simulated import open_simulated
from services.runtime import instances, process
from services.runtime.collector import keep_loaded
from services.runtime.lifecycle import Stop, run
from services.runtime.models import resolve
from services.runtime.settings import ServerSettings
from services.wire.links import Poller, finish, open_inlet, open_outlet
from services.wire.liveness import Heart
from services.wire.messages import Constraint
from services.wire.shared import SharedOutlet
from services.wire.topology import PLAN, RESULT

FLUSH_S = 1.0  # how long the last results may take to leave


def serve(settings: ServerSettings, stop: Stop) -> None:
    """The backend comes first: a link that shows life belongs to a process that is ready."""
    grammars = Grammars(open_compiler(settings), settings.executor.constraint_cache)
    backend = open_backend(settings, grammars)
    at = settings.links
    topology = process.topology(at)
    plans = open_inlet(PLAN, topology.bound_address(PLAN))
    results = SharedOutlet(open_outlet(RESULT, topology.address(RESULT), at.high_water_mark))
    poller = Poller(plans)
    wake = poller.waker().wake
    stop.on_set(wake)
    # The instance names this process's life: no later one on this machine has the same start time.
    instance = time.time_ns()
    core = ExecutorCore(backend, instance, grammars=grammars)
    heart = Heart([results], at.heartbeat_s, process.sign_of_life(at.run_dir, "executor"))
    service = ExecutorService(core, plans, results, heart, at.death_s)
    capacity = backend.capacity
    instances.tell_ready(at.run_dir, instance)
    keep_loaded()
    structlog.get_logger().info("service.ready", num_blocks=capacity.num_blocks, block_size=capacity.block_size)
    try:
        service.run(poller, wake, lambda: stop.is_set, at.heartbeat_s / 2)
    finally:
        finish(FLUSH_S)


def open_compiler(settings: ServerSettings) -> Callable[[Constraint], Grammar | None]:
    """What makes grammars of constraints; without a model they are judged and not followed."""
    if settings.executor.backend == "torch":
        return Compiler(settings.executor, lambda: read_vocabulary(settings))
    return Checker(settings.executor)


def read_vocabulary(settings: ServerSettings) -> Vocabulary:
    """The served model's tokenizer, which only constraints need here."""
    from services.tokenizer.tokenizer import load  # noqa: PLC0415

    return load(resolve(settings.model, with_weights=False))


def open_backend(settings: ServerSettings, grammars: Grammars) -> Backend:
    """The backend that the settings name; numpy and what computes with it are imported for models alone."""
    if settings.executor.backend == "torch":
        # OpenMP's threads wait for one another by spinning. This server's other processes need the same cores: a
        # spinning thread then holds up the one it waits for, and a step takes many times as long. Read at import.
        os.putenv("OMP_WAIT_POLICY", "PASSIVE")
        from services.executor.opening import open_model  # noqa: PLC0415

        return open_model(settings.executor, resolve(settings.model), settings.model.name, grammars)
    return open_simulated(settings.executor, settings.model.name)


if __name__ == "__main__":
    run("executor", serve)
