"""Operator: orders to a server, from synchronous code, over its admin listener.

    with Operator("unix:/run/tandem/admin-gateway-0") as operator:
        operator.drain(wait=True)

Answers are the messages of proto/tandem/v1/control.proto themselves; failures are those of errors.py. An order is never
sent twice.
"""

from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message

from tandem import errors
from tandem.connection import Tls, connection
from tandem.v1 import control_pb2 as pb

R = TypeVar("R", bound=Message)

SERVICE = "/tandem.v1.ControlService"
# Orders are done at once or fail; only a drain takes its delay, and as long as the calls that are open.
WITHIN_S = 10.0


class Operator:
    """One channel to one admin listener. tls: None = a plain connection; token: TANDEM_TOKEN by default."""

    def __init__(
        self, address: str, *, tls: Tls | grpc.ChannelCredentials | None = None, token: str | None = None
    ) -> None:
        way = connection(address, tls, token)
        self._metadata = way.metadata
        self._channel = (
            grpc.insecure_channel(way.address, options=way.options)
            if way.credentials is None
            else grpc.secure_channel(way.address, way.credentials, options=way.options)
        )

    def server_info(self) -> pb.GetServerInfoResponse:
        """What the server is, and its load."""
        return self._call("GetServerInfo", pb.GetServerInfoRequest(), pb.GetServerInfoResponse)

    def watch_load(self, interval_s: float = 1.0) -> Generator[pb.LoadReport, None, None]:
        """The load, now and every interval_s, until the iterator is closed."""
        request = pb.WatchLoadRequest(interval_ms=round(interval_s * 1000))
        path, serialize = f"{SERVICE}/WatchLoad", pb.WatchLoadRequest.SerializeToString
        call = self._channel.unary_stream(path, serialize, pb.LoadReport.FromString)(request, metadata=self._metadata)
        try:
            yield from call
        except grpc.RpcError as error:
            raise errors.from_rpc(error) from error
        finally:
            call.cancel()

    def cancel(self, request_ids: Sequence[str] = (), *, everything: bool = False) -> pb.CancelResponse:
        """End calls by their ids, or all of them."""
        request = pb.CancelRequest(request_ids=request_ids, all=everything)
        return self._call("Cancel", request, pb.CancelResponse)

    def flush_prefix_cache(self) -> int:
        """Forget cached prefixes; the number of KV blocks given up."""
        reply = self._call("FlushPrefixCache", pb.FlushPrefixCacheRequest(), pb.FlushPrefixCacheResponse)
        return reply.num_blocks

    def drain(self, *, wait: bool = False) -> int:
        """Have no new call taken, and wait until none is open, if wished; the number of those that are."""
        return self._call("Drain", pb.DrainRequest(wait=wait), pb.DrainResponse, within_s=None).num_open_calls

    def pause(self) -> None:
        """Have no step planned."""
        self._call("Pause", pb.PauseRequest(), pb.PauseResponse)

    def resume(self) -> None:
        """Have steps planned again."""
        self._call("Resume", pb.ResumeRequest(), pb.ResumeResponse)

    def set_log_level(self, level: str, services: Sequence[str] = ()) -> None:
        """Log from this level on, in some services or all."""
        request = pb.SetLogLevelRequest(level=level, services=services)
        self._call("SetLogLevel", request, pb.SetLogLevelResponse)

    def close(self) -> None:
        """Close the channel. Idempotent."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, method: str, request: Message, reply: type[R], within_s: float | None = WITHIN_S) -> R:
        call = self._channel.unary_unary(f"{SERVICE}/{method}", type(request).SerializeToString, reply.FromString)
        try:
            answer: R = call(request, timeout=within_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise errors.from_rpc(error) from error
        return answer
