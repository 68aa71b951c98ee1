"""The kernels as machine code for the GPUs that they are meant for; no GPU is needed for that."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

pytest.importorskip("triton", reason="triton has no wheel for this machine")


def test_every_kernel_compiles_for_hopper(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    program = [sys.executable, "-m", "tests.unit.executor.cuda.compile_kernels"]
    done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    sizes = json.loads(done.stdout)
    assert len(sizes) == 9 and all(size > 1000 for size in sizes.values())
