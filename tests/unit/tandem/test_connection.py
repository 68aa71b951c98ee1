"""How a client is told to reach its server: tokens, files, names."""

import json
from pathlib import Path

import pytest
import trustme

from gateway.server import SERVICE_NAMES
from tandem.connection import CHANNEL_OPTIONS, SERVICE_CONFIG, Tls, connection


def test_a_token_goes_with_every_call_and_the_environment_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEM_TOKEN", raising=False)
    assert connection("a", None, None).metadata == ()
    assert connection("a", None, "t").metadata == (("authorization", "Bearer t"),)
    monkeypatch.setenv("TANDEM_TOKEN", "env")
    assert connection("a", None, None).metadata == (("authorization", "Bearer env"),)
    assert connection("a", None, "t").metadata == (("authorization", "Bearer t"),)
    assert connection("a", None, "").metadata == (), "an empty token is a wish for none"


def test_without_tls_the_connection_is_plain() -> None:
    way = connection("a", None, None)
    assert way.credentials is None and way.options == CHANNEL_OPTIONS


def test_tls_reads_its_files_and_may_expect_another_name(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(trustme.CA().cert_pem.bytes())
    way = connection("a", Tls(ca, server_name="b"), None)
    assert way.credentials is not None
    assert ("grpc.ssl_target_name_override", "b") in way.options and set(CHANNEL_OPTIONS) < set(way.options)


def test_files_that_cannot_be_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        connection("a", Tls(tmp_path / "absent"), None)
    with pytest.raises(ValueError, match="go together"):
        connection("a", Tls(certificate=tmp_path / "c"), None)


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("127.0.0.1:1,127.0.0.2:2", "ipv4:127.0.0.1:1,127.0.0.2:2"),
        ("127.0.0.1:1, 127.0.0.2:2", "ipv4:127.0.0.1:1,127.0.0.2:2"),
        ("[::1]:1,[::2]:2", "ipv6:[::1]:1,[::2]:2"),
        ("dns:///llm.example.org:1", "dns:///llm.example.org:1"),
        ("ipv4:127.0.0.1:1,127.0.0.2:2", "ipv4:127.0.0.1:1,127.0.0.2:2"),
    ],
)
def test_several_servers_are_gone_round_by_the_shipped_service_config(address: str, target: str) -> None:
    way = connection(address, None, None)
    assert way.address == target
    assert json.loads(str(dict(way.options)["grpc.service_config"]))["loadBalancingConfig"] == [{"round_robin": {}}]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "llm.example.org:1", "unix:/run/tandem.sock", "[::1]:1"])
def test_one_server_is_called_as_it_is(address: str) -> None:
    way = connection(address, None, None)
    assert (way.address, way.options) == (address, CHANNEL_OPTIONS)


@pytest.mark.parametrize("address", ["a:1,b:2", "127.0.0.1:1,[::1]:2", "127.0.0.1:1,"])
def test_several_names_are_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="dns:///"):
        connection(address, None, None)


def test_the_service_config_names_the_services_there_are() -> None:
    config = json.loads(SERVICE_CONFIG.read_text())
    (methods,) = config["methodConfig"]
    assert {name["service"] for name in methods["name"]} == set(SERVICE_NAMES)
    assert config["healthCheckConfig"]["serviceName"] in SERVICE_NAMES
