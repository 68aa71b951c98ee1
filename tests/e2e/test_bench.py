"""`tandem bench` against a real server: every request answered, the table, the file, the picture, the exit code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from typer.testing import CliRunner, Result

from tandem.cli import app
from tests.e2e.processes import Settings
from tests.e2e.serving import serving

SETTINGS: Settings = {
    "executor": {"backend": "simulated", "step_fixed_us": 2000.0},
    "scheduler": {"max_num_seqs": 4, "max_waiting": 8},
    "gateway": {"listen": "127.0.0.1:0"},
    "links": {"death_s": 30.0},
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(SETTINGS) as server:
        yield server.address


def bench(address: str, *flags: str) -> Result:
    return CliRunner().invoke(app, ["bench", "--address", address, *flags])


def results(path: Path) -> list[dict[str, Any]]:
    written: dict[str, list[dict[str, Any]]] = msgspec.json.decode(path.read_bytes())
    return written["results"]


def test_closed_and_open_loops_as_a_table_a_file_and_a_picture(address: str, tmp_path: Path) -> None:
    flags = ["--concurrency", "1", "--concurrency", "3", "--rate", "20", "--num-requests", "8", "--turns", "2"]
    flags += ["--prompt-tokens", "4-8", "--output-tokens", "5", "--json", str(tmp_path / "out.json")]
    result = bench(address, *flags, "--plots", str(tmp_path / "plots"))
    assert str(tmp_path) not in (tmp_path / "out.json").read_text(), "figures may be shared, folders need not"
    closed = results(tmp_path / "out.json")[:2]
    assert [(each["load"], each["server"]) for each in closed] == [("c=1", "tandem"), ("c=3", "tandem")]
    for each in closed:
        assert (each["num_ok"], each["num_output_tokens"], each["failures"]) == (16, 80, {})
        assert 16 * 4 <= each["num_input_tokens"] <= 16 * 8
        assert 0 < each["ttft_ms"]["p50"] <= each["e2e_ms"]["p50"]
    assert "c=3" in result.stdout and "20/s" in result.stdout and "TTFT" in result.stdout
    assert ElementTree.parse(tmp_path / "plots" / "load.svg").getroot().tag.endswith("svg")


def test_refusals_are_counted_by_reason_and_told_by_the_exit_code(address: str, tmp_path: Path) -> None:
    flags = ["--rate", "1000", "--burst", "40", "--num-requests", "40", "--prompt-tokens", "4", "--output-tokens", "50"]
    result = bench(address, *flags, "--json", str(tmp_path / "out.json"), "--warm-up", "0")
    (each,) = results(tmp_path / "out.json")
    assert result.exit_code == 1 and set(each["failures"]) == {"QUEUE_FULL"}
    assert each["num_ok"] + each["failures"]["QUEUE_FULL"] == 40 and each["num_ok"] >= 8
    assert "QUEUE_FULL" in result.stdout


def test_a_file_is_replayed_at_its_times(address: str, tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"text": "a b c", "max_tokens": 3}\n{"token_ids": [5], "max_tokens": 2, "arrival_s": 0.05}\n')
    result = bench(address, "--requests", str(path), "--replay", "--json", str(tmp_path / "out.json"))
    (each,) = results(tmp_path / "out.json")
    assert result.exit_code == 0 and (each["load"], each["num_output_tokens"]) == ("replay", 5)
    assert each["duration_s"] > 0.05


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--prompt-tokens", "9-3"], "--prompt-tokens"),
        (["--output-tokens", "x"], "--output-tokens"),
        (["--replay"], "--requests"),
        (["--requests", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--against", "localhost:8000/v1"], "--against"),
        (["--against", "tandem=http://localhost/v1"], "taken"),
        (["--against-fields", "[]"], "--against-fields"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(flags: list[str], word: str) -> None:
    result = bench("127.0.0.1:1", *flags)
    assert result.exit_code == 2 and word in result.stderr
