"""A sign of life, and what is read from it."""

import os
from pathlib import Path

import pytest

from services.runtime import link_keys, models
from services.runtime.process import is_alive, sign_of_life, topology
from services.runtime.settings import LinkSettings, SettingsError
from services.wire.topology import SUBMIT


def test_a_sign_is_good_for_so_long(tmp_path: Path) -> None:
    beat = sign_of_life(str(tmp_path), "scheduler")
    assert not is_alive(str(tmp_path), "scheduler", 5.0, now=100.0)
    beat()
    os.utime(tmp_path / "scheduler.alive", (100.0, 100.0))
    assert is_alive(str(tmp_path), "scheduler", 5.0, now=105.0)
    assert not is_alive(str(tmp_path), "scheduler", 5.0, now=105.1)
    assert not is_alive(str(tmp_path), "executor", 5.0, now=100.0)
    os.utime(tmp_path / "scheduler.alive", (100.0, 100.0))
    beat()
    assert (tmp_path / "scheduler.alive").stat().st_mtime > 100.0


def test_without_a_run_directory_nobody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sign_of_life("", "scheduler")()
    assert list(tmp_path.iterdir()) == []


def test_addresses_come_from_the_settings_of_the_links() -> None:
    links = LinkSettings(transport="tcp", host="{receiver}", bind="*", base_port=7000)
    assert topology(links).address(SUBMIT) == "tcp://scheduler:7000"
    assert topology(links).bound_address(SUBMIT) == "tcp://*:7000"


def test_keys_are_made_once(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    first = link_keys.at(path).read_bytes()
    assert link_keys.at(path).read_bytes() == first and path.stat().st_mode & 0o077 == 0
    path.chmod(0o644)
    with pytest.raises(SettingsError, match=r"links\.keys: .*others may read it"):
        link_keys.at(path)


def test_a_model_is_put_where_none_is(tmp_path: Path) -> None:
    models.provide(tmp_path / "model.gguf")
    assert (tmp_path / "model.gguf").read_bytes()[:4] == b"GGUF"
    (tmp_path / "own.gguf").write_bytes(b"my own")
    models.provide(tmp_path / "own.gguf")
    assert (tmp_path / "own.gguf").read_bytes() == b"my own"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf", "own.gguf"]
