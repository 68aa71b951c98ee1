"""The transport: TLS and who may connect, several addresses, sizes, pings, compression."""

import asyncio
import datetime
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
import trustme

from services.runtime.settings import GatewaySettings
from services.tokenizer import Tokenizer
from tandem import AsyncClient, Tls
from tandem.errors import ConnectionFailed
from tandem.v1 import inference_pb2 as pb
from tests.unit.gateway.rig import SETTINGS, Front, error_of, read, running

pytestmark = pytest.mark.asyncio(loop_scope="session")

A_DAY = datetime.timedelta(days=1)


@dataclass
class Files:
    """Certificates in a folder, made by two authorities: one that is trusted, and a stranger."""

    folder: Path
    ours: trustme.CA
    strangers: trustme.CA

    @property
    def ca(self) -> Path:
        return self.write("ca", self.ours.cert_pem.bytes())

    def write(self, name: str, pem: bytes) -> Path:
        path = self.folder / f"{name}.pem"
        path.write_bytes(pem)
        return path

    def pair(self, name: str, by: trustme.CA, expired: bool = False) -> tuple[Path, Path]:
        """A certificate and its key."""
        now = datetime.datetime.now(datetime.UTC)
        ends = now - A_DAY if expired else now + A_DAY
        issued = by.issue_cert("127.0.0.1", "localhost", not_before=now - 2 * A_DAY, not_after=ends)
        chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
        return self.write(name, chain), self.write(f"{name}-key", issued.private_key_pem.bytes())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path, trustme.CA(), trustme.CA())


def secured(files: Files, **fields: Any) -> GatewaySettings:
    certificate, key = files.pair("server", files.ours)
    return msgspec.structs.replace(SETTINGS, tls_certificate=str(certificate), tls_key=str(key), **fields)


async def served(front: Front, client: AsyncClient) -> str:
    """A call that must succeed; its text."""
    call = asyncio.create_task(client.generate("x", timeout_s=5))
    submit = await front.engine.submit()
    front.engine.say(submit, "ok", [5])
    front.engine.end(submit)
    return (await call).text


async def refused(address: str, tls: Tls | None) -> None:
    async with AsyncClient(address, tls=tls) as client:
        with pytest.raises(ConnectionFailed):
            await client.generate("x", timeout_s=5)


async def test_over_tls_a_client_that_trusts_the_authority_is_served(tokenizer: Tokenizer, files: Files) -> None:
    async with running(tokenizer, secured(files)) as front:
        async with AsyncClient(front.address, tls=Tls(ca=files.ca)) as client:
            assert await served(front, client) == "ok"
        await refused(front.address, None)
        await refused(front.address, Tls(ca=files.write("strangers", files.strangers.cert_pem.bytes())))
        assert front.engine.drain() == []


async def test_an_expired_server_is_not_believed(tokenizer: Tokenizer, files: Files) -> None:
    certificate, key = files.pair("expired", files.ours, expired=True)
    settings = msgspec.structs.replace(SETTINGS, tls_certificate=str(certificate), tls_key=str(key))
    async with running(tokenizer, settings) as front:
        await refused(front.address, Tls(ca=files.ca))


async def test_with_mutual_tls_only_clients_of_the_authority_are_served(tokenizer: Tokenizer, files: Files) -> None:
    async with running(tokenizer, secured(files, tls_client_ca=str(files.ca))) as front:
        async with AsyncClient(front.address, tls=Tls(files.ca, *files.pair("client", files.ours))) as client:
            assert await served(front, client) == "ok"
        await refused(front.address, Tls(files.ca))
        await refused(front.address, Tls(files.ca, *files.pair("stranger", files.strangers)))
        await refused(front.address, Tls(files.ca, *files.pair("late", files.ours, expired=True)))
        async with AsyncClient(front.address, tls=Tls(files.ca, *files.pair("client", files.ours))) as client:
            assert await served(front, client) == "ok"


async def test_a_renewed_certificate_is_shown_to_the_next_connection(tokenizer: Tokenizer, files: Files) -> None:
    settings = secured(files)
    async with running(tokenizer, settings) as front:
        async with AsyncClient(front.address, tls=Tls(files.ca)) as client:
            assert await served(front, client) == "ok"
            for path in files.pair("server", files.strangers):
                os.utime(path, ns=(1, 1))
            new = Tls(files.write("strangers", files.strangers.cert_pem.bytes()))
            async with AsyncClient(front.address, tls=new) as other:
                assert await served(front, other) == "ok"
            assert await served(front, client) == "ok", "an open connection goes on"
        await refused(front.address, Tls(files.ca))


async def test_it_listens_on_every_address_of_the_settings(tokenizer: Tokenizer, tmp_path: Path, files: Files) -> None:
    path = tmp_path / "s"
    settings = secured(files, listen=f"127.0.0.1:0,unix:{path},localhost:0")
    async with running(tokenizer, settings) as front:
        first, unix, second = front.address.split(",")
        assert unix == f"unix:{path}" and first != second
        for address, tls in ((first, Tls(files.ca)), (unix, None), (second, Tls(files.ca))):
            async with AsyncClient(address, tls=tls) as client:
                assert await served(front, client) == "ok"
    assert not path.exists()


async def test_a_unix_socket_in_use_is_not_taken_over_and_a_dead_one_is(tokenizer: Tokenizer, tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SETTINGS, listen=f"unix:{tmp_path}/s")
    async with running(tokenizer, settings) as front:
        with pytest.raises(RuntimeError, match="somebody listens"):
            async with running(tokenizer, settings):
                pass
        async with AsyncClient(front.address) as client:
            assert await served(front, client) == "ok"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{tmp_path}/s")
    async with running(tokenizer, settings) as front, AsyncClient(front.address) as client:
        assert await served(front, client) == "ok"


async def test_a_message_that_is_too_large_is_refused_by_name(tokenizer: Tokenizer) -> None:
    bound = 10_000
    async with running(tokenizer, msgspec.structs.replace(SETTINGS, max_message_bytes=bound)) as front:
        error = await error_of(front.generate(text="x" * bound))
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE")
        assert error.metadata["limit"] == str(bound) and int(error.metadata["given"]) > bound
        assert error.quotas == ("message bytes",) and error.retry_s is None
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max") as caught:
            await front.generate(text="x" * 2 * bound)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert front.engine.drain() == []


@pytest.mark.parametrize(("size", "fits"), [(12_000, True), (20_000, False)])
async def test_metadata_have_a_bound(front: Front, size: int, fits: bool) -> None:
    method = front.channel.unary_unary(
        "/tandem.v1.InferenceService/Generate", pb.GenerateRequest.SerializeToString, pb.GenerateResponse.FromString
    )
    call = method(pb.GenerateRequest(text="x"), metadata=(("x-note", "n" * size),), timeout=5)
    if fits:
        front.engine.end(await front.engine.submit())
        await call
        return
    with pytest.raises(grpc.aio.AioRpcError, match="metadata size exceeds") as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert front.engine.drain() == []


async def test_requests_may_be_compressed_and_cannot_hide_their_size(tokenizer: Tokenizer) -> None:
    bound = 100_000
    async with running(tokenizer, msgspec.structs.replace(SETTINGS, max_message_bytes=bound)) as front:
        method = front.channel.unary_unary(
            "/tandem.v1.InferenceService/Generate", pb.GenerateRequest.SerializeToString, pb.GenerateResponse.FromString
        )
        call = method(pb.GenerateRequest(text="x " * 100), compression=grpc.Compression.Gzip, timeout=5)
        front.engine.end(await front.engine.submit())
        await call
        bomb = pb.GenerateRequest(text="x" * 100 * bound)
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max") as caught:
            await method(bomb, compression=grpc.Compression.Gzip, timeout=5)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@asynccontextmanager
async def pinging(front: Front, every_s: float) -> AsyncIterator[grpc.aio.Channel]:
    """A channel of its own that pings so often, calls or none."""
    options = [
        ("grpc.keepalive_time_ms", round(every_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with grpc.aio.insecure_channel(front.address, options=options) as channel:
        yield channel


def begun(channel: grpc.aio.Channel) -> "grpc.aio.UnaryStreamCall[Any, pb.GenerateChunk]":
    method = channel.unary_stream(
        "/tandem.v1.InferenceService/StreamGenerate", pb.GenerateRequest.SerializeToString, pb.GenerateChunk.FromString
    )
    return method(pb.GenerateRequest(text="x"), timeout=10)


async def test_decent_pings_carry_a_call_through_its_silence(tokenizer: Tokenizer) -> None:
    settings = msgspec.structs.replace(SETTINGS, min_ping_s=0.02, keepalive_s=0.05, keepalive_timeout_s=1.0)
    async with running(tokenizer, settings) as front, pinging(front, 0.1) as channel:
        stream = begun(channel)
        submit = await front.engine.submit()
        await asyncio.sleep(1.0)
        front.engine.say(submit, "late", [5])
        assert (await read(stream)).text == "late"
        front.engine.end(submit)
        await read(stream)


async def test_a_client_that_floods_with_pings_loses_its_connection_and_nobody_else_does(
    tokenizer: Tokenizer,
) -> None:
    settings = msgspec.structs.replace(SETTINGS, min_ping_s=60.0, max_ping_strikes=1)
    async with running(tokenizer, settings) as front, pinging(front, 0.05) as channel:
        decent = front.generate()
        decent_submit = await front.engine.submit()
        stream = begun(channel)
        await front.engine.submit()
        with pytest.raises(grpc.aio.AioRpcError, match="Too many pings") as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await front.engine.cancel()
        front.engine.end(decent_submit)
        await decent
