"""VllmEngine: who we are, how we fare, and the tokenizer as files. Generate's own path is generate.py's.

smg asks HealthCheck, GetModelInfo and GetServerInfo once, fetches the tokenizer, then subscribes to load records, and
polls GetLoads where it has none. What a worker may leave out is UNIMPLEMENTED.
"""

import asyncio
import time
from datetime import UTC, datetime
from importlib.metadata import version

import grpc
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from gateway.engine import Phase, Served
from gateway.errors import CallError
from gateway.guard import Context
from gateway.service import Gateway
from gateway.vllm.archive import archive, chunks
from gateway.vllm.generate import generate
from gateway.vllm.loads import Loads
from services.tokenizer import bundle
from services.wire.messages import ControlVerb
from tandem.v1 import errors_pb2 as reasons

SERVER_TYPE = "tandem"
# smg drops a worker whose records stop, so an idle engine's are sent too; a change is sent when it is noticed.
HEARTBEAT_S = 1.0
LOOK_EVERY_S = 0.25


class VllmServicer:
    """Methods as in vllm_engine.proto."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._loads = Loads(gateway)
        self._started = time.monotonic()
        self._num_subscribers = 0
        self._packing = asyncio.Lock()
        self._packed: tuple[Served, bytes] | None = None

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        """Completes token ids with token ids."""
        await generate(self._gateway, request, context)

    async def Abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """Ends calls by their ids; one that is not open is no error."""
        for request_id in request.request_ids:
            self._gateway.cancel(request_id, "aborted by the gateway in front")
        return pb.AbortResponse()

    async def HealthCheck(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        """Whether calls are taken."""
        phase, is_serving = self._gateway.engine.phase, self._gateway.is_serving
        message = "leaving" if phase is Phase.READY and not is_serving else phase.name.lower()
        return pb.HealthCheckResponse(healthy=is_serving, message=message)

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:
        """What is served."""
        served = self._gateway.engine.served()
        card, vocabulary = served.ready.card, served.tokenizer.vocabulary
        return pb.GetModelInfoResponse(
            model_path=card.name,
            served_model_name=card.name,
            is_generation=True,
            max_context_length=card.context_length,
            max_req_input_len=card.context_length - 1,
            vocab_size=card.vocab_size,
            model_type=vocabulary.architecture,
            architectures=bundle.architectures(vocabulary.architecture),
            eos_token_ids=card.eos_token_ids,
            bos_token_id=vocabulary.bos_token_id or 0,
        )

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        """How it is served."""
        engine = self._gateway.engine
        ready, load = engine.served().ready, engine.loads.last
        return pb.GetServerInfoResponse(
            active_requests=len(self._gateway.calls),
            is_paused=load is not None and load.is_paused,
            uptime_seconds=time.monotonic() - self._started,
            server_type=SERVER_TYPE,
            data_parallel_size=1,
            block_size=ready.block_size,
            model_dtype=ready.card.dtype,
            max_num_seqs=ready.max_num_seqs,
            constrained_decoding_start="first_token",
        )

    async def GetLoads(self, request: pb.GetLoadsRequest, context: Context) -> pb.GetLoadsResponse:
        """The load of the one rank there is."""
        return pb.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(),
            version=version("tandem"),
            dp_rank_count=1,
            loads=[self._loads.current()],
        )

    async def GetTokenizer(self, request: common_pb2.GetTokenizerRequest, context: Context) -> None:
        """The tokenizer's files, zipped."""
        for chunk in chunks(await self._tokenizer_files(self._gateway.engine.served())):
            await context.write(chunk)

    async def SubscribeKvEvents(self, request: common_pb2.SubscribeKvEventsRequest, context: Context) -> None:
        """Load records, as long as calls are taken. Events of single blocks are not told: there is no history of them
        to resume from, and every record has number 0."""
        if request.start_sequence_number:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, "no events are kept; subscribe from 0")
        most = self._gateway.settings.max_load_watchers
        if self._num_subscribers >= most:
            raise CallError(reasons.ERROR_REASON_TOO_MANY_CALLS, f"{most} clients are subscribed already")
        self._num_subscribers += 1
        try:
            await self._tell_loads(context)
        finally:
            self._num_subscribers -= 1

    async def Embed(self, request: pb.EmbedRequest, context: Context) -> None:
        """Not served: the model generates."""
        await _unserved(context)

    async def FlushCache(
        self, request: common_pb2.FlushCacheRequest, context: Context
    ) -> common_pb2.FlushCacheResponse:
        """Forgets cached prefixes at once; what is in use stays."""
        self._gateway.engine.served()
        reply = await self._gateway.orders.give(ControlVerb.FLUSH_CACHE)
        return common_pb2.FlushCacheResponse(success=reply.is_done, message=f"{reply.num_affected} blocks")

    async def StartProfile(self, request: common_pb2.StartProfileRequest, context: Context) -> None:
        """Not served here."""
        await _unserved(context)

    async def StopProfile(self, request: common_pb2.StopProfileRequest, context: Context) -> None:
        """Not served here."""
        await _unserved(context)

    async def _tell_loads(self, context: Context) -> None:
        """Records until no call is taken any more, which ends the stream with the reason."""
        engine, clock = self._gateway.engine, self._gateway.clock
        sample, told, due = 0, None, 0.0
        while True:
            engine.served()
            if engine.load is not told or clock() >= due:
                sample, told, due = sample + 1, engine.load, clock() + HEARTBEAT_S
                record = self._loads.record(sample)
                await context.write(common_pb2.KvEventBatch(timestamp=time.time(), dp_rank=0, load=record))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _tokenizer_files(self, served: Served) -> bytes:
        """The zip, packed once for each engine, beside the loop."""
        async with self._packing:
            if self._packed is None or self._packed[0] is not served:
                packed = await asyncio.to_thread(_pack, served)
                self._packed = (served, packed)
            return self._packed[1]


def _pack(served: Served) -> bytes:
    return archive(bundle.files(served.tokenizer, served.ready.card.context_length))


async def _unserved(context: Context) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Tandem does not serve this method")
