"""The gRPC server around a Gateway, and its life: start, serve, drain or die.

One event loop carries it all: gRPC, both inlets, the clock. Links, tokenizer and stop come in as arguments, so that a
test runs the same server over memory links. Invariants: the port is taken before anything else, and fails fast; no
call is taken before the engine, the detokenizer and the tokenizer are there; when the server goes, every open call has
been told so.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from gateway import transport
from gateway.chat import ChatServicer
from gateway.control import Life
from gateway.door import Door
from gateway.engine import Phase
from gateway.guard import Guard
from gateway.health import SERVICE_NAME as HEALTH_NAME
from gateway.health import Health
from gateway.inference import InferenceServicer
from gateway.models import ModelServicer
from gateway.operations import Operations
from gateway.reflection import add_reflection
from gateway.service import Gateway
from services.runtime.settings import GatewaySettings, LinkSettings
from services.tokenizer import Tokenizer
from services.wire.link import AsyncInlet, Outlet
from services.wire.liveness import Heart, silent_senders
from services.wire.messages import StatusMessage, SubmitMessage, TextMessage
from tandem.v1 import chat_pb2, inference_pb2, models_pb2

if TYPE_CHECKING:
    from gateway.vllm.listener import VllmListener

log = structlog.get_logger()

SERVICES = (
    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"],
    chat_pb2.DESCRIPTOR.services_by_name["ChatService"],
    models_pb2.DESCRIPTOR.services_by_name["ModelService"],
)
SERVICE_NAMES = tuple(service.full_name for service in SERVICES)

NOTHING: Mapping[str, str] = MappingProxyType({})

# Two tokenizer threads, so that one long text does not hold up the others; more would take cores from the engine.
TOKENIZER_THREADS = 2
# How often the clock is looked at: to become ready, and afterwards.
STARTING_TICK_S = 0.02
TICK_S = 0.25
# The last words of ended calls may take so long to leave.
FAREWELL_S = 2.0
# And so long the transport may take to close; streams that never end by themselves, such as health watches, are cut.
CLOSING_S = 0.2


class EngineGone(Exception):
    """The engine died under the gateway; every open call has been told."""


class Ending(Enum):
    """Why a server ends."""

    DRAIN = "drain"  # told to finish what is open
    ENGINE_DEAD = "engine_dead"  # told that the engine is gone
    DIED = "died"  # found out by itself


@dataclass(frozen=True)
class Links:
    """The gateway's ends of its three links."""

    submits: Outlet[SubmitMessage]
    statuses: AsyncInlet[StatusMessage]
    texts: AsyncInlet[TextMessage]


class Server:
    """One gateway process, as far as it is not its process. To be made on the loop that runs it. about: settings by
    section and key that operators are told."""

    def __init__(
        self, settings: GatewaySettings, timing: LinkSettings, links: Links, about: Mapping[str, str] = NOTHING
    ) -> None:
        self._settings = settings
        self._timing = timing
        self._links = links
        self._heart = Heart([links.submits], timing.heartbeat_s)
        self._threads = ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")
        # Rising over restarts too: no (gateway, request, incarnation) is ever used twice.
        self.gateway = Gateway(settings, links.submits, self._threads, time.monotonic, time.time_ns() // 1000)
        self.gateway.on_phase = self._phase_changed
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[Ending] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._can_tokenize = False
        self._started = time.monotonic()
        self._dead = asyncio.Event()
        self._health = Health(SERVICE_NAMES)
        self.operations = Operations(self.gateway, self._health, timing.run_dir, about)
        self._address = ""
        self._guard = Guard(settings.max_message_bytes, self.operations.accounts)
        self._door = Door(settings, time.monotonic, self.operations.metrics.refused)
        self._grpc = grpc.aio.server(interceptors=self._door.interceptors, options=transport.options(settings))
        self._vllm = self._vllm_listener() if settings.vllm_listen else None
        self.vllm_address = ""  # where VllmEngine is served, once it is

    async def start(self) -> str:
        """Take the ports and begin to answer; the addresses, separated by commas. RuntimeError when one is taken."""
        await self._health.add_to(self._grpc)
        gateway = self.gateway
        servicers = (InferenceServicer(gateway), ChatServicer(gateway), ModelServicer(gateway.engine, self._settings))
        for service, servicer in zip(SERVICES, servicers, strict=True):
            self._guard.add_service(self._grpc, service, servicer)
        add_reflection(self._grpc, (*SERVICE_NAMES, HEALTH_NAME))
        addresses = transport.listen(self._grpc, self._settings.listen.split(","), self._settings)
        if self._vllm is not None:
            self.vllm_address = await self._vllm.bind(self._settings.vllm_listen)
        await self._grpc.start()
        log.info("gateway.listening", addresses=addresses)
        self._address = ",".join(addresses)
        if self._vllm is not None:
            await self._vllm.start(self.vllm_address)
        await self.operations.start(self._life())
        return self._address

    async def serve(self, load_tokenizer: Callable[[], Tokenizer]) -> None:
        """Serve until told to stop, then end every call and the server. Raises EngineGone when the engine died."""
        for work in (self._pump_statuses(), self._pump_texts(), self._watch(), self._load(load_tokenizer)):
            self._run(work)
        try:
            ending = await self._over
            if ending is Ending.DRAIN:
                await self._drain()
        finally:
            await self._farewell()
        if ending is Ending.DIED:
            raise EngineGone(self.gateway.engine.refusal().message)

    def stop(self, ending: Ending) -> None:
        """Begin to end; `serve` returns when it is done."""
        if not self._over.done():
            self._over.set_result(ending)
        if ending is Ending.ENGINE_DEAD:
            self.gateway.engine.die("the engine is gone")

    def _vllm_listener(self) -> "VllmListener":
        # Its contract is a package that only this listener needs.
        from gateway.vllm.listener import VllmListener  # noqa: PLC0415

        return VllmListener(self.gateway, self._guard, transport.options(self._settings))

    async def _pump_statuses(self) -> None:
        while True:
            self.gateway.absorb_statuses(await self._links.statuses.receive())

    async def _pump_texts(self) -> None:
        while True:
            self.gateway.absorb_texts(await self._links.texts.receive())
            # Those who write have a turn before the next batch, also when that is here already.
            await asyncio.sleep(0)

    async def _load(self, load_tokenizer: Callable[[], Tokenizer]) -> None:
        tokenizer = await self._loop.run_in_executor(self._threads, load_tokenizer)
        self._can_tokenize = True
        self.gateway.engine.tokenizer_loaded(tokenizer)

    async def _watch(self) -> None:
        """The clock: heartbeats, silent peers, and whatever else falls due."""
        then = self.gateway.clock()
        while True:
            starts = self.gateway.engine.phase is Phase.STARTING
            pause = min(STARTING_TICK_S if starts else TICK_S, self._timing.heartbeat_s / 2)
            await asyncio.sleep(pause)
            now = self.gateway.clock()
            if self._can_tokenize:
                self._heart.beat(now)
            if self._links.texts.last_heard():
                self.gateway.engine.text_heard()
            # A process that itself slept must first listen, and may not call its peers silent.
            if now - then < pause + self._timing.death_s / 2 and self.gateway.engine.phase is not Phase.DEAD:
                self._check_peers(now)
            self.gateway.tick(now)
            self._door.look_again()
            self.operations.look_again()
            then = now

    def _check_peers(self, now: float) -> None:
        inlets: tuple[tuple[str, AsyncInlet[Any]], ...] = (
            ("scheduler", self._links.statuses),
            ("detokenizer", self._links.texts),
        )
        for peer, inlet in inlets:
            if silent_senders(inlet, now, self._timing.death_s):
                log.error("peer.silent", peer=peer, seconds=self._timing.death_s)
                self.gateway.engine.die(f"the {peer} is silent")

    def _life(self) -> Life:
        return Life(lambda: self._address, lambda: time.monotonic() - self._started, self._leave, self._guard.idle.wait)

    async def _leave(self) -> None:
        """Health first: whoever routes calls here has drain_delay_s to stop doing so before a call is refused."""
        if self.gateway.engine.phase >= Phase.DRAINING:
            return
        self.gateway.is_leaving = True
        await self._show_health(False)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._dead.wait(), self._settings.drain_delay_s)

    async def _drain(self) -> None:
        """Take no new call, let the open ones finish in drain_s, then end them."""
        await self._leave()
        self.gateway.engine.drain()
        await self._idle(self._settings.drain_s)
        self.gateway.calls.fail_all(self.gateway.engine.refusal())

    async def _farewell(self) -> None:
        """Let the last words leave, then close the port and stop working."""
        await self._idle(FAREWELL_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        stops = [self._grpc.stop(CLOSING_S), self.operations.stop(CLOSING_S)]
        await asyncio.gather(*stops, *([] if self._vllm is None else [self._vllm.stop(CLOSING_S)]))
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _idle(self, timeout_s: float) -> None:
        """Until no call is open, or until timeout_s has passed."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._guard.idle.wait(), timeout_s)

    def _phase_changed(self, phase: Phase) -> None:
        self._run(self._show_health(self.gateway.is_serving))
        if phase is Phase.DEAD:
            self._dead.set()
            if not self._over.done():
                self._over.set_result(Ending.DIED)

    async def _show_health(self, is_serving: bool) -> None:
        await self._health.show(is_serving)
        if self._vllm is not None:
            await self._vllm.show(is_serving)

    def _run(self, work: Coroutine[None, None, None]) -> None:
        """Run beside everything else; what breaks it breaks the server."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if self._over.done():
            log.error("gateway.failed_while_ending", error=f"{type(error).__name__}: {error}")
        else:
            self._over.set_exception(error)
        self.gateway.engine.die("the gateway failed")
