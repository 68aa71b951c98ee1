"""A gateway with the VllmEngine listener on, and a stub for it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import msgspec
import pytest

from services.runtime.settings import GatewaySettings
from services.tokenizer import Tokenizer
from tests.unit.gateway.rig import SETTINGS, Front, running

pb = pytest.importorskip("smg_grpc_proto.generated.vllm_engine_pb2", reason="needs the package smg-grpc-proto")
stubs = pytest.importorskip("smg_grpc_proto.generated.vllm_engine_pb2_grpc")

LISTENING = msgspec.structs.replace(SETTINGS, vllm_listen="127.0.0.1:0")


@dataclass
class Worker:
    """A gateway, its engine, and the stub that smg would use."""

    front: Front
    channel: grpc.aio.Channel
    stub: Any

    def generate(self, ids: list[int] | None = None, stream: bool = True, request_id: str = "", **params: Any) -> Any:
        """One Generate call."""
        request = pb.GenerateRequest(
            request_id=request_id,
            tokenized=pb.TokenizedInput(input_ids=[1, 2, 3] if ids is None else ids),
            sampling_params=pb.SamplingParams(**params),
            stream=stream,
        )
        return self.stub.Generate(request, timeout=10)


@asynccontextmanager
async def working(
    tokenizer: Tokenizer, is_ready: bool = True, settings: GatewaySettings = LISTENING
) -> AsyncIterator[Worker]:
    """A gateway with both listeners, until the block is left."""
    async with (
        running(tokenizer, settings, is_ready=is_ready) as front,
        grpc.aio.insecure_channel(front.server.vllm_address) as channel,
    ):
        yield Worker(front, channel, stubs.VllmEngineStub(channel))
