"""The file of the links' keys, and links over tcp that take in nobody without them."""

import contextlib
import os
import random
import socket
from collections.abc import Iterator, MutableMapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog

from services.wire import keys, links
from services.wire.keys import KeysError
from services.wire.links import Poller, ZmqInlet, open_inlet, open_outlet
from services.wire.messages import Credit, FeedbackMessage
from services.wire.topology import FEEDBACK
from tests.ports import free_port

MESSAGE = Credit("gateway-0", 7)


def test_what_was_written_is_read_and_nobody_else_may(tmp_path: Path) -> None:
    path, made = tmp_path / "keys", links.new_keys()
    keys.write(path, made)
    assert keys.read(path) == made
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(KeysError, match="exists"):
        keys.write(path, made)
    assert links.new_keys() != made


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match=r"absent: No such file"):
        keys.read(tmp_path / "absent")
    junk = tmp_path / "junk"
    junk.write_bytes(b"no keys")
    junk.chmod(0o600)
    with pytest.raises(KeysError, match="no keys"):
        keys.read(junk)
    open_to_all = tmp_path / "open"
    keys.write(open_to_all, links.new_keys())
    open_to_all.chmod(0o644)
    with pytest.raises(KeysError, match="others may read it"):
        keys.read(open_to_all)


@pytest.fixture
def secured() -> Iterator[tuple[bytes, bytes]]:
    made = links.new_keys()
    links.secure(made)
    yield made
    links.secure(None)


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


def heard(inlet: ZmqInlet[FeedbackMessage], count: int) -> list[FeedbackMessage]:
    """So many messages, which must come."""
    messages: list[FeedbackMessage] = []
    with closing(Poller(inlet)) as poller:
        while len(messages) < count:
            poller.wait(10.0)
            messages += inlet.receive()
    return messages


@pytest.mark.parametrize("stranger", ["plain", "other keys"])
def test_over_tcp_only_peers_with_the_keys_are_heard(secured: tuple[bytes, bytes], stranger: str) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with closing(open_inlet(FEEDBACK, address)) as inlet:
        links.secure(None if stranger == "plain" else links.new_keys())
        with closing(open_outlet(FEEDBACK, address, 8)) as outside:
            outside.send(Credit("stranger", 1))
            links.secure(secured)
            with closing(open_outlet(FEEDBACK, address, 8)) as outlet:
                outlet.send(MESSAGE)
                assert heard(inlet, 1) == [MESSAGE]


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
@pytest.mark.parametrize(
    "junk", [b"\x01\x00\x05\x00hello", random.Random(7).randbytes(10_000), b""], ids=["v1", "random", "none"]
)
def test_bytes_that_are_no_peer_s_reach_nobody_and_leave_a_line(
    secured: tuple[bytes, bytes], tmp_path: Path, transport: str, junk: bytes, logged: list[MutableMapping[str, Any]]
) -> None:
    port = free_port()
    address = f"ipc://{tmp_path}/feedback" if transport == "ipc" else f"tcp://127.0.0.1:{port}"
    with closing(open_inlet(FEEDBACK, address)) as inlet, closing(open_outlet(FEEDBACK, address, 8)) as outlet:
        outlet.send(MESSAGE)
        assert heard(inlet, 1) == [MESSAGE]
        with socket.socket(socket.AF_UNIX if transport == "ipc" else socket.AF_INET) as stranger:
            stranger.connect(f"{tmp_path}/feedback" if transport == "ipc" else ("127.0.0.1", port))
            with contextlib.suppress(ConnectionError):  # it may hang up before it has heard all
                stranger.sendall(junk)
            outlet.send(MESSAGE)
            assert heard(inlet, 1) == [MESSAGE]
        while not logged:
            assert inlet.receive() == []
        (line,) = logged
        assert (line["event"], line["link"], line["num"]) == ("link.disconnected", "feedback", 1)
        outlet.send(MESSAGE)
        assert heard(inlet, 1) == [MESSAGE]
    assert os.listdir(tmp_path) in ([], ["feedback"])
