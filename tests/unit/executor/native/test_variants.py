"""The check that also runs where there is no Python (tests/emulation), on the variants that this processor can run."""

import subprocess
from pathlib import Path

import pytest

from services.executor.native.binding import variants
from tests.emulation.build import build_check
from tests.unit.executor.native.conftest import LIBRARY, library_path

ROUNDS, SEED = "6", "1"
PARTS = ("tokens", "products", "attention", "steps")

needs_kernels = pytest.mark.skipif(LIBRARY is None, reason="no kernels were built")


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("check") / "check"
    build_check(library_path(), program)
    return program


@needs_kernels
def test_every_variant_on_random_shapes(check: Path) -> None:
    assert LIBRARY is not None
    done = subprocess.run([check, ROUNDS, SEED], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    for name in variants(LIBRARY):
        for part in PARTS:
            assert f"{name} {part}: " in done.stdout


@needs_kernels
def test_a_variant_that_is_not_there_is_no_success(check: Path) -> None:
    assert subprocess.run([check, ROUNDS, SEED, "other"], capture_output=True).returncode != 0


@needs_kernels
def test_a_process_that_is_refused_tiles_does_without(check: Path) -> None:
    done = subprocess.run([check, "refused"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "avx2" in done.stdout.split()
