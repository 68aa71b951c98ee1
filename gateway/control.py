"""ControlService: what a server is, how busy it is, and orders to it.

Thin: orders go to the scheduler (orders.py), to the table of calls or to the server's own life, which come in from
outside. Knows no listener. Invariant: at most max_load_watchers streams of load are open.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import get_args

import structlog

from gateway.engine import Phase
from gateway.errors import CallError, Violation
from gateway.fields import Fields, between, refuse_if_any
from gateway.goodput import Goodput
from gateway.load import Rates, kv_usage, rates
from gateway.models import limits_of, model_of
from gateway.service import Gateway
from gateway.streams import Context
from services.runtime import logs
from services.runtime.settings import LogLevel
from services.wire.messages import ControlVerb, Load
from tandem.v1 import control_pb2 as pb
from tandem.v1 import errors_pb2 as reasons

log = structlog.get_logger()

SERVICES = ("gateway", "scheduler", "executor", "detokenizer")
LEVELS = get_args(LogLevel)
INTERVAL_MS = between(100, 60_000)
DEFAULT_INTERVAL_MS = 1000
MAX_CANCELLED_IDS = 1024
WHY = "the call was cancelled by an operator"

STATES = {
    Phase.STARTING: pb.SERVER_STATE_STARTING,
    Phase.READY: pb.SERVER_STATE_READY,
    Phase.DRAINING: pb.SERVER_STATE_DRAINING,
    Phase.DEAD: pb.SERVER_STATE_DEAD,
}


@dataclass(frozen=True)
class Life:
    """The server around a gateway, as far as operators may ask of it. Drain returns when new calls are refused."""

    address: Callable[[], str]
    uptime_s: Callable[[], float]
    drain: Callable[[], Awaitable[None]]
    wait_idle: Callable[[], Awaitable[object]]


class ControlServicer:
    """Methods as in proto/tandem/v1/control.proto."""

    def __init__(self, gateway: Gateway, life: Life, goodput: Goodput, about: Mapping[str, str]) -> None:
        """about: settings by section and key, without secrets."""
        self._gateway = gateway
        self._life = life
        self._goodput = goodput
        self._about = about
        self._num_watchers = 0

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        """What this server is."""
        gateway = self._gateway
        served, load = gateway.engine.offer, gateway.engine.loads.last
        return pb.GetServerInfoResponse(
            version=version("tandem"),
            gateway=gateway.settings.name,
            state=STATES[gateway.engine.phase],
            uptime_s=self._life.uptime_s(),
            address=self._life.address(),
            model=None if served is None else model_of(served, limits_of(gateway.settings)),
            load=None if load is None else self._report(load, gateway.engine.loads.rates()),
            settings=self._about,
            num_open_calls=len(gateway.calls),
        )

    async def WatchLoad(self, request: pb.WatchLoadRequest, context: Context) -> None:
        """The load, until the client leaves."""
        interval_s = _interval_ms(request) / 1000
        most = self._gateway.settings.max_load_watchers
        if self._num_watchers >= most:
            raise CallError(reasons.ERROR_REASON_TOO_MANY_CALLS, f"{most} clients watch the load already")
        self._num_watchers += 1
        try:
            before = self._gateway.engine.loads.baseline()
            while True:
                load = await self._fresh_load()
                await context.write(self._report(load, rates(before or load, load)))
                before = load
                await asyncio.sleep(interval_s)
        finally:
            self._num_watchers -= 1

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        """End calls."""
        ids = list(request.request_ids)
        _check_cancel(request)
        if request.all:
            reply = await self._order(ControlVerb.CANCEL_ALL)
            return pb.CancelResponse(num_cancelled=reply)
        unknown = [request_id for request_id in ids if not self._gateway.cancel(request_id, WHY)]
        log.info("control.cancelled", request_ids=ids, unknown=unknown)
        return pb.CancelResponse(num_cancelled=len(ids) - len(unknown), unknown_request_ids=unknown)

    async def FlushPrefixCache(
        self, request: pb.FlushPrefixCacheRequest, context: Context
    ) -> pb.FlushPrefixCacheResponse:
        """Forget cached prefixes."""
        return pb.FlushPrefixCacheResponse(num_blocks=await self._order(ControlVerb.FLUSH_CACHE))

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        """Take no new call."""
        await self._life.drain()
        await self._order(ControlVerb.DRAIN)
        if request.wait:
            await self._life.wait_idle()
        return pb.DrainResponse(num_open_calls=len(self._gateway.calls))

    async def Pause(self, request: pb.PauseRequest, context: Context) -> pb.PauseResponse:
        """Plan no step."""
        await self._order(ControlVerb.PAUSE)
        return pb.PauseResponse()

    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.ResumeResponse:
        """Plan again."""
        await self._order(ControlVerb.RESUME)
        return pb.ResumeResponse()

    async def SetLogLevel(self, request: pb.SetLogLevelRequest, context: Context) -> pb.SetLogLevelResponse:
        """Change what is logged."""
        _check_log_level(request)
        services = tuple(request.services) or SERVICES
        behind = [service for service in services if service != "gateway"]
        if behind:
            await self._order(ControlVerb.LOG_LEVEL, " ".join([request.level, *behind]))
        if "gateway" in services:
            logs.set_level(request.level)
        return pb.SetLogLevelResponse()

    async def _order(self, verb: ControlVerb, argument: str = "") -> int:
        """Have the scheduler do it; how much it affected."""
        if self._gateway.engine.phase is Phase.DEAD:
            raise self._gateway.engine.refusal()
        reply = await self._gateway.orders.give(verb, argument)
        log.info("control.done", order=verb.name.lower(), argument=argument, num_affected=reply.num_affected)
        return reply.num_affected

    async def _fresh_load(self) -> Load:
        """The load of this moment: the scheduler tells it before it answers."""
        engine = self._gateway.engine
        if engine.phase is Phase.DEAD:
            raise engine.refusal()
        await self._gateway.orders.give(ControlVerb.LOAD)
        assert engine.loads.last is not None
        return engine.loads.last

    def _report(self, load: Load, speed: Rates) -> pb.LoadReport:
        return pb.LoadReport(
            num_waiting=load.num_waiting,
            num_running=load.num_running,
            num_swapped=load.num_swapped,
            num_free_blocks=load.num_free_blocks,
            num_blocks=load.num_blocks,
            kv_usage=kv_usage(load),
            drain_rate=load.drain_rate,
            output_tokens_per_s=speed.output_tokens,
            prompt_tokens_per_s=speed.prompt_tokens,
            steps_per_s=speed.steps,
            prefix_cache_hit_rate=speed.hit_rate,
            num_preemptions=load.num_preemptions,
            num_steps=load.num_steps,
            num_output_tokens=load.num_output_tokens,
            num_prompt_tokens=load.num_prompt_tokens,
            is_paused=load.is_paused,
            goodput=self._goodput.ratio(),
        )


def _interval_ms(request: pb.WatchLoadRequest) -> int:
    violations: list[Violation] = []
    fields = Fields(request, "", violations)
    interval_ms = fields.integer("interval_ms", INTERVAL_MS)
    refuse_if_any(violations)
    return DEFAULT_INTERVAL_MS if interval_ms is None else interval_ms


def _check_cancel(request: pb.CancelRequest) -> None:
    violations: list[Violation] = []
    fields = Fields(request, "", violations)
    fields.count("request_ids", MAX_CANCELLED_IDS)
    if request.all and request.request_ids:
        fields.wrong("request_ids", "must be empty when all is true")
    if not request.all and not request.request_ids:
        fields.wrong("request_ids", "must have at least one entry, unless all is true")
    refuse_if_any(violations)


def _check_log_level(request: pb.SetLogLevelRequest) -> None:
    violations: list[Violation] = []
    fields = Fields(request, "", violations)
    if request.level not in LEVELS:
        fields.wrong("level", f"must be one of {LEVELS}, is {request.level!r}")
    for index, service in enumerate(request.services):
        if service not in SERVICES:
            fields.wrong(f"services[{index}]", f"must be one of {SERVICES}, is {service!r}")
    refuse_if_any(violations)
