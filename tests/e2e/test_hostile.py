"""Hostile bytes and calls on every listener of a server: refused, and a neighbour's stream does not notice."""

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
import trustme

from services.runtime import access
from services.wire.topology import LINKS
from tandem import Client, TandemError, Tls
from tandem.errors import ConnectionFailed, MessageTooLarge, Overloaded, Unauthenticated, from_rpc
from tests.e2e.hostile import Listener, attack, payloads
from tests.e2e.processes import PATIENCE_S, Server, server
from tests.e2e.serving import Serving
from tests.ports import free_ports

# The links' inlets, in the order of their ports.
NUM_PORTS = len(LINKS)
TOKEN = "a-token"
PROMPT = list(range(100, 400))


@dataclass
class Fortress:
    """A server with TLS, tokens, a unix socket, an admin port, and links over tcp."""

    process: Server
    tls: Tls
    address: str
    unix: str
    base_port: int

    def client(self, **options: Any) -> Client:
        return Client(self.address, **{"tls": self.tls, "token": TOKEN, **options})

    def listeners(self) -> list[Listener]:
        """Everything that listens."""
        (run_dir,) = self.process.root.glob("tandem-*")
        published = [Listener(name, (run_dir / f"gateway-0.{name}").read_text()) for name in ("admin", "metrics")]
        links = [Listener(f"link {index}", f"tcp://127.0.0.1:{self.base_port + index}") for index in range(NUM_PORTS)]
        return [Listener("grpc", self.address), Listener("unix", self.unix), *published, *links]


@pytest.fixture(scope="module")
def fortress(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fortress]:
    folder = tmp_path_factory.mktemp("fortress")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "ca"))
    issued.private_key_pem.write_to_path(str(folder / "key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert"))
    (folder / "tokens").write_text(f'[[token]]\nname = "a"\nsha256 = "{access.digest(TOKEN)}"\n')
    base_port = free_ports(NUM_PORTS)
    settings: dict[str, dict[str, Any]] = {
        "executor": {"backend": "echo", "step_fixed_us": 2000.0},
        "links": {"transport": "tcp", "base_port": base_port, "death_s": 30.0},
        "gateway": {
            "tls_certificate": str(folder / "cert"),
            "tls_key": str(folder / "key"),
            "tokens": str(folder / "tokens"),
            "admin_listen": "127.0.0.1:0",
            "metrics_listen": "127.0.0.1:0",
            "admin_tokens": str(folder / "tokens"),
            "max_message_bytes": 100_000,
            "drain_s": 1.0,
        },
    }
    # Not one of pytest's folders: their paths are too long for a socket.
    with tempfile.TemporaryDirectory(prefix="t-") as sockets:
        settings["gateway"]["listen"] = f"127.0.0.1:0,unix:{sockets}/s"
        with server(settings, "--log-level", "debug") as process:
            address, unix = process.address().split(",")
            found = Fortress(process, Tls(ca=folder / "ca"), address, unix, base_port)
            with found.client() as client:
                client.wait_until_ready(PATIENCE_S)
            yield found
            process.stop()


@contextmanager
def neighbour(fortress: Fortress) -> Iterator[None]:
    """A stream that goes on meanwhile, and must end as if it had been alone."""
    with fortress.client() as client, client.stream_generate(PROMPT, max_tokens=800, return_token_ids=True) as stream:
        tokens = list(next(stream).token_ids)
        yield
        for chunk in stream:
            tokens += chunk.token_ids
    assert tokens == [PROMPT[index % len(PROMPT)] for index in range(800)]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))])
def test_bytes_of_no_decent_peer_disturb_nobody_on_any_listener(fortress: Fortress, seed: int) -> None:
    start = fortress.process.log.stat().st_size
    with neighbour(fortress):
        for listener in fortress.listeners():
            for name, payload in payloads(seed):
                attack(listener, payload)
                assert fortress.process.is_running, (listener, name)
        with fortress.client() as client:
            assert client.generate([7, 8, 9], max_tokens=3, return_token_ids=True).completions[0].token_ids == (7, 8, 9)
    told = Serving(fortress.address, fortress.process).entries(start)
    assert not [entry for entry in told if entry["level"] in ("error", "critical")]
    links = {entry["link"] for entry in told if entry["event"] == "link.disconnected"}
    assert links == {link.name for link in LINKS}, "each link tells that it was called by strangers"
    assert len(fortress.process.services()) == 4


def test_a_client_without_the_right_token_or_certificate_is_refused_and_told_why(fortress: Fortress) -> None:
    start = fortress.process.log.stat().st_size
    with neighbour(fortress):
        for token in ("", "wrong"):
            with fortress.client(token=token) as client, pytest.raises(Unauthenticated) as refused:
                client.generate("x")
            assert refused.value.code is grpc.StatusCode.UNAUTHENTICATED
        with Client(fortress.unix, token="wrong") as client, pytest.raises(Unauthenticated):
            client.generate("x")
        for tls in (None, Tls()):
            with fortress.client(tls=tls) as client, pytest.raises(ConnectionFailed):
                client.generate("x", timeout_s=10)
    told = [entry for entry in Serving("", fortress.process).entries(start) if entry["event"] == "call.refused"]
    assert [entry["reason"] for entry in told] == ["UNAUTHENTICATED"] * 3, "each refused call leaves one line"


def test_what_is_too_large_is_refused_and_told_why(fortress: Fortress) -> None:
    with neighbour(fortress), fortress.client() as client:
        with pytest.raises(MessageTooLarge) as named:
            client.generate("x" * 150_000)
        assert named.value.details.metadata["limit"] == "100000"
        with pytest.raises(Overloaded, match="larger than max"):
            client.generate("x" * 300_000)
        with (
            Client(fortress.unix, token=TOKEN + "x" * 20_000) as much,
            pytest.raises(TandemError, match="metadata") as big,
        ):
            much.generate("x", timeout_s=10)
        assert big.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_request_that_is_no_message_is_refused(fortress: Fortress) -> None:
    with grpc.insecure_channel(fortress.unix) as channel:
        call: Any = channel.unary_unary("/tandem.v1.InferenceService/Generate")
        for payload in (b"\xff" * 100, b"\x1a\x02\xff\xfe", random.Random(1).randbytes(10_000)):
            with pytest.raises(grpc.RpcError) as refused:
                call(payload, metadata=(("authorization", f"Bearer {TOKEN}"),), timeout=10)
            assert from_rpc(refused.value).reason == "MALFORMED_REQUEST"


def test_the_links_sockets_and_keys_are_the_user_s_alone(fortress: Fortress) -> None:
    (run_dir,) = fortress.process.root.glob("tandem-*")
    assert run_dir.stat().st_mode & 0o777 == 0o700
    assert (run_dir / "links.keys").stat().st_mode & 0o777 == 0o600
