"""`tandem bench policies`: the command, its files, and what it says when it cannot draw."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from typer.testing import CliRunner

from services.scheduler.virtual.scenarios import SCENARIOS
from tandem.cli import app
from tandem.cli.bench_plots import PICTURES

RUN = CliRunner()


def test_a_scenario_as_a_table_a_file_and_a_picture(tmp_path: Path) -> None:
    json, plots = tmp_path / "out.json", tmp_path / "deep" / "plots"
    flags = ["--only", "textbook", "--json", str(json), "--plots", str(plots)]
    result = RUN.invoke(app, ["bench", "policies", *flags])
    assert result.exit_code == 0, result.output
    assert "78.8%" in result.stdout and "0.0%" in result.stdout
    written = msgspec.json.decode(json.read_bytes())
    assert written["seed"] == 0 and written["device"]["kv_bytes"] == 131072
    (scenario,) = written["scenarios"]
    assert [(run["label"], run["idle_share"]) for run in scenario["runs"]] == [
        ("static", 3150 / 4000),
        ("continuous", 0.0),
    ]
    assert ElementTree.parse(plots / "textbook.svg").getroot().tag.endswith("svg")
    first = (plots / "textbook.svg").read_bytes(), json.read_bytes()
    assert RUN.invoke(app, ["bench", "policies", *flags]).exit_code == 0
    assert ((plots / "textbook.svg").read_bytes(), json.read_bytes()) == first, "the same again"


def test_a_scenario_that_is_not_there_is_named() -> None:
    result = RUN.invoke(app, ["bench", "policies", "--only", "texbook"])
    assert result.exit_code == 2
    assert "texbook" in result.stderr and "textbook" in result.stderr


def test_without_matplotlib_it_works_and_says_what_pictures_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tandem.cli.bench_plots", None)  # what Python puts there to refuse an import
    result = RUN.invoke(app, ["bench", "policies", "--only", "textbook"])
    assert result.exit_code == 0
    refused = RUN.invoke(app, ["bench", "policies", "--only", "textbook", "--plots", str(tmp_path / "plots")])
    assert refused.exit_code == 2
    assert "matplotlib" in refused.stderr and "bench" in refused.stderr
    assert not refused.stdout and not (tmp_path / "plots").exists(), "before anything is run"


def test_every_scenario_has_a_picture() -> None:
    assert [scenario.name for scenario in SCENARIOS] == list(PICTURES)
