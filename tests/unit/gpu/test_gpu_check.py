"""`make gpu-check` on a CPU: the same code at small shapes, to the last file that it writes."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

from tests.architecture.tree import ROOT


def test_the_dry_run_finds_nothing_wrong_and_writes_its_files(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.gpu", "--dry-run", "--out", str(tmp_path)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [path] = tmp_path.glob("*.json")
    result = json.loads(path.read_text())
    names = [finding["name"] for finding in result["findings"]]
    assert len(names) == len(set(names)) > 50 and all(finding["is_good"] for finding in result["findings"])
    modes = {(entry["rows"], entry["captured"], entry["depth"]) for entry in result["decode"]}
    assert modes == {(rows, captured, depth) for rows in (1, 3) for captured in (False, True) for depth in (1, 2)}
    assert all(entry["step_ms_p50"] > 0 and entry["limit_ms"] > 0 for entry in result["decode"])
    with gzip.open(tmp_path / result["trace"]["file"]) as packed:
        assert json.load(packed)["traceEvents"]


def test_without_a_gpu_it_says_so_and_is_content(tmp_path: Path) -> None:
    program = (
        "import torch, runpy; torch.cuda.is_available = lambda: False; "
        "runpy.run_module('tests.gpu', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and "SKIPPED" in done.stdout and not list(tmp_path.iterdir())
