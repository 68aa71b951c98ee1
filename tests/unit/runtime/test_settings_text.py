"""Every key through every place, which place wins, and what is said of values and keys that cannot be."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect as types
from typer.testing import CliRunner

from services.runtime.settings import ServerSettings, SettingsError, load, merged
from services.runtime.settings_text import (
    MARK,
    Key,
    from_environment,
    from_flags,
    keys,
    to_table,
    to_toml,
    write_table,
)
from tandem.cli import app

ROOT = Path(__file__).parents[3]
KEYS = list(keys().values())
# Texts have rules that their type does not tell, which load() holds them to.
TEXTS = {
    "gateway.listen": "127.0.0.1:7",
    "gateway.vllm_listen": "127.0.0.1:8",
    "gateway.admin_listen": "127.0.0.1:9",
    "gateway.metrics_listen": "127.0.0.1:10",
    "gateway.tls_key": "",
    "gateway.tls_certificate": "",
    "gateway.tls_client_ca": "",
}


def another(key: Key) -> Any:
    """A value that the key may have and, where that is possible, not its default."""
    return TEXTS[key.path] if key.path in TEXTS else _another(types.type_info(key.annotation), key.default)


def _another(kind: types.Type, default: Any) -> Any:
    match kind:
        case types.LiteralType(values=values):
            return next((value for value in values if value != default), default)
        case types.BoolType():
            return not default
        case types.IntType() | types.FloatType():
            most = kind.le if kind.le is not None else float("inf")
            return default + 1 if default + 1 <= most else default - (1 if isinstance(kind, types.IntType) else 0.5)
        case types.StrType():
            return "other"
        case types.VarTupleType(item_type=item):
            return (_another(item, None), _another(item, None))
        case _:
            raise AssertionError(kind)


def as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def value_of(settings: ServerSettings, key: Key) -> Any:
    return getattr(getattr(settings, key.section), key.name) if key.section else getattr(settings, key.name)


def test_every_field_of_every_section_is_a_key_and_says_what_it_means() -> None:
    values = msgspec.to_builtins(ServerSettings())
    fields = {f"{name}.{key}" for name, section in values.items() if isinstance(section, dict) for key in section}
    assert set(keys()) == fields | {"log_level"}
    assert all(len(key.meaning) > 5 and key.takes for key in KEYS)
    assert len({key.variable for key in KEYS}) == len(KEYS)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.path)
def test_a_key_through_the_file_the_environment_and_a_flag(key: Key, tmp_path: Path) -> None:
    value = another(key)
    path = tmp_path / "tandem.toml"
    line = f"{key.name} = {json.dumps(value)}\n"
    path.write_text(f"[{key.section}]\n{line}" if key.section else line)
    nowhere = load(None)
    for settings in (
        load(path),
        load(None, from_environment({key.variable: as_text(value)})),
        load(None, from_flags([f"--{key.path}", as_text(value)])),
        load(None, from_flags([f"--{key.path}={as_text(value)}"])),
    ):
        assert value_of(settings, key) == value
        others = [other for other in KEYS if other != key and other.path != "executor.max_rows"]
        assert [value_of(settings, other) for other in others] == [value_of(nowhere, other) for other in others]


BAD = {
    types.LiteralType: "zebra",
    types.BoolType: "zebra",
    types.IntType: "1.5",
    types.FloatType: "zebra",
    types.VarTupleType: "no zebra!",
}


@pytest.mark.parametrize("key", [key for key in KEYS if type(types.type_info(key.annotation)) in BAD])
def test_a_value_that_cannot_be_is_refused_by_the_name_of_its_key(key: Key) -> None:
    text = BAD[type(types.type_info(key.annotation))]
    with pytest.raises(SettingsError, match=rf"^{key.path}: .*{text}"):
        from_environment({key.variable: text})
    with pytest.raises(SettingsError, match=rf"^{key.path}: .*{text}"):
        from_flags([f"--{key.path}={text}"])


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tandem.toml"
    path.write_text("[scheduler]\ndepth = 1\nmax_waiting = 1\ntoken_budget = 11\n")
    environment = from_environment({"TANDEM_SCHEDULER_DEPTH": "3", "TANDEM_SCHEDULER_MAX_WAITING": "3", "PATH": "x"})
    scheduler = load(path, merged(environment, from_flags(["--scheduler.max_waiting=5"]))).scheduler
    assert (scheduler.depth, scheduler.max_waiting, scheduler.token_budget) == (3, 5, 11)


@pytest.mark.parametrize(
    ("environment", "word"),
    [
        ({"TANDEM_SCHEDULER_DEPHT": "1"}, "TANDEM_SCHEDULER_DEPHT"),
        ({"TANDEM_GATEWAY_": "1"}, "TANDEM_GATEWAY_"),
    ],
)
def test_a_variable_that_is_nearly_a_setting_is_refused(environment: dict[str, str], word: str) -> None:
    with pytest.raises(SettingsError, match=word):
        from_environment(environment)


def test_variables_that_are_none_of_the_settings_are_left_alone() -> None:
    assert from_environment({"TANDEM_TOKEN": "x", "HOME": "/", "TANDEM": "y"}) == {}


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--scheduler.depht", "1"], "--scheduler.depht"),
        (["--scheduler.depth"], "a value must follow"),
        (["scheduler.depth=1"], "no such flag"),
        (["--depht=3"], "--depht"),
    ],
)
def test_a_flag_that_is_none_is_named(flags: list[str], word: str) -> None:
    with pytest.raises(SettingsError, match=word):
        from_flags(flags)


def test_what_is_printed_can_be_read_again(tmp_path: Path) -> None:
    settings = load(
        None, {"scheduler": {"depth": 1}, "gateway": {"name": "gateway-1"}, "links": {"gateways": ["a", "b"]}}
    )
    path = tmp_path / "tandem.toml"
    path.write_text(to_toml(settings))
    assert load(path) == settings


def test_the_command_prints_what_it_would_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TANDEM_SCHEDULER_MAX_WAITING", "77")
    flags = ["--print-config", "--scheduler.victim", "cost", "--depth", "3", "--max-num-seqs", "16"]
    result = CliRunner().invoke(app, ["serve", *flags])
    assert result.exit_code == 0, result.output
    (tmp_path / "tandem.toml").write_text(result.stdout)
    settings = load(tmp_path / "tandem.toml")
    assert (settings.scheduler.max_waiting, settings.scheduler.victim, settings.scheduler.depth) == (77, "cost", 3)
    assert (settings.scheduler.max_num_seqs, settings.executor.max_rows) == (16, 18), "room for runs that are ending"


def test_the_command_refuses_what_is_no_flag() -> None:
    result = CliRunner().invoke(app, ["serve", "--print-config", "--dephth", "3"])
    assert result.exit_code == 2 and "--dephth" in result.stderr


def test_the_page_of_settings_is_current(tmp_path: Path) -> None:
    page = ROOT / "docs" / "settings.md"
    assert page.read_text().partition(MARK)[2].strip() == to_table().strip(), "make settings"
    copy = tmp_path / "settings.md"
    copy.write_text("head\n" + MARK + "old")
    write_table(copy)
    assert copy.read_text() == "head\n" + MARK + "\n" + to_table()
