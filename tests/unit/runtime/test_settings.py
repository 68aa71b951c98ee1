"""Settings from TOML and from flags: composed, checked, and refused by the name of what is wrong."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.runtime.settings import ServerSettings, SettingsError, handed_down, load, temporary_root


def _file(folder: Path, text: str) -> Path:
    path = folder / "tandem.toml"
    path.write_text(text)
    return path


def test_without_a_file_everything_is_the_default() -> None:
    assert load(None) == ServerSettings()


def test_the_defaults_obey_their_own_bounds() -> None:
    assert msgspec.convert(msgspec.to_builtins(ServerSettings()), ServerSettings) == ServerSettings()


def test_a_file_sets_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    settings = load(_file(tmp_path, '[scheduler]\ndepth = 3\n[gateway]\nlisten = "127.0.0.1:0"\n'))
    assert (settings.scheduler.depth, settings.gateway.listen) == (3, "127.0.0.1:0")
    assert settings.executor == ServerSettings().executor


def test_overrides_win_over_the_file_key_by_key(tmp_path: Path) -> None:
    path = _file(tmp_path, 'log_level = "error"\n[scheduler]\ndepth = 3\ntoken_budget = 64\n')
    settings = load(path, {"log_level": "debug", "scheduler": {"depth": 1}, "executor": {"backend": "echo"}})
    assert (settings.log_level, settings.executor.backend) == ("debug", "echo")
    assert (settings.scheduler.depth, settings.scheduler.token_budget) == (1, 64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[scheduler]\ndepth = 4", r"^scheduler\.depth: Expected `int` <= 3$"),
        ("[scheduler]\ndepth = 0", r"^scheduler\.depth: Expected `int` >= 1$"),
        ("[scheduler]\ndept = 2", r"^scheduler: Object contains unknown field `dept`$"),
        ("[schedule]\ndepth = 2", r"^Object contains unknown field `schedule`$"),
        ('[executor]\nbackend = "gpu"', r"^executor\.backend: Invalid enum value 'gpu'$"),
        ("[links]\ndeath_s = 0.0", r"^links\.death_s: Expected `float` > 0"),
        ("[links]\ndeath_s = 1.0", r"^links\.death_s: must be longer than links\.heartbeat_s$"),
        ('[gateway]\nname = "../up"', r"^gateway\.name: Expected `str` matching regex"),
        ('[gateway]\nlisten = "localhost"', r"^gateway\.listen: expected host:port or unix:path, got 'localhost'$"),
        ('[gateway]\nlisten = "127.0.0.1:65536"', r"^gateway\.listen: expected host:port"),
        ('[gateway]\nlisten = ":50051"', r"^gateway\.listen: expected host:port"),
        ('[gateway]\nlisten = "unix:/a,nowhere"', r"^gateway\.listen: expected host:port or unix:path, got 'nowhere'$"),
        ('[gateway]\ntls_key = "k"', r"^gateway\.tls_key: goes together with gateway\.tls_certificate$"),
        ('[gateway]\ntls_client_ca = "c"', r"^gateway\.tls_client_ca: needs gateway\.tls_certificate"),
        ('[gateway]\ntokenless = ["generate"]', r"^gateway\.tokenless.*: Invalid enum value 'generate'$"),
        ("scheduler = 3", r"^scheduler: Expected `object`, got `int`$"),
        ("depth", r"tandem\.toml: Expected '='"),
    ],
)
def test_what_is_wrong_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(_file(tmp_path, text))


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:0", "[::1]:50051", "localhost:65535", "unix:/run/tandem.sock", "0.0.0.0:1,unix:/s"]
)
def test_addresses_to_listen_on(listen: str) -> None:
    assert load(None, {"gateway": {"listen": listen}}).gateway.listen == listen


def test_a_section_that_is_none_is_refused_also_when_a_flag_sets_a_key_of_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^scheduler: Expected `object`, got `int`$"):
        load(_file(tmp_path, "scheduler = 3"), {"scheduler": {"depth": 1}})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.toml: No such file or directory"):
        load(tmp_path / "absent.toml")


def test_settings_survive_being_handed_down(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"scheduler": {"depth": 1}, "links": {"run_dir": "/run/é"}}
    settings = load(None, changes)
    path = tmp_path / "settings.json"
    path.write_bytes(msgspec.json.encode(settings))
    assert handed_down(path) == settings


def test_run_directories_go_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert temporary_root() == tmp_path
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path.parent))
    assert temporary_root() == tmp_path.parent
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.delenv("TMPDIR")
    assert temporary_root() == Path("/tmp")


@pytest.mark.parametrize("listen", ["", "local", "127.0.0.1:0", "unix:/run/admin"])
def test_operators_may_call_a_socket_a_port_or_nobody(listen: str) -> None:
    assert load(None, {"gateway": {"admin_listen": listen}}).gateway.admin_listen == listen


def test_an_admin_address_that_is_none_is_named() -> None:
    with pytest.raises(SettingsError, match=r"gateway\.admin_listen: expected host:port or unix:path, got 'loca'"):
        load(None, {"gateway": {"admin_listen": "loca"}})
