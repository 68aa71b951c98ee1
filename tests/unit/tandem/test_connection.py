"""How a client is told to reach its server: tokens, files, names."""

from pathlib import Path

import pytest
import trustme

from tandem.connection import CHANNEL_OPTIONS, Tls, connection


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
