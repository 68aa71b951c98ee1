"""Random shapes by the hundred, and every test of the kernels once more under AddressSanitizer."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Quantization

from services.executor.native.binding import Kernels, KvType
from tests.unit.executor.native.conftest import LIBRARY
from tests.unit.executor.native.test_attention import Case, random_rows
from tests.unit.executor.native.test_linear import eight_bits, multiply, packed, stored, unpacked

ROOT = Path(__file__).parents[4]
SOURCES = ROOT / "services" / "executor" / "native" / "src"
NUM_ROUNDS = 150
SANITIZED = ("-std=c++20", "-O1", "-g", "-fopenmp", "-fsanitize=address", "-fno-omit-frame-pointer", "-shared", "-fPIC")


@pytest.mark.soak
def test_attention_of_random_shapes(kernels: Kernels) -> None:
    rng = np.random.default_rng(1)
    for seed in range(NUM_ROUNDS):
        kv_heads, group = int(rng.integers(1, 5)), int(rng.integers(1, 9))
        heads = (kv_heads * group, kv_heads, int(rng.choice([16, 32, 64, 80, 128, 256])))
        window = int(rng.integers(1, 600)) if rng.random() < 0.3 else 0
        longest = 8192 if rng.random() < 0.05 else 700
        case = Case(random_rows(rng, longest), heads, int(rng.choice([16, 32, 48, 128])), seed)
        case.check(kernels, KvType(int(rng.integers(3))), window)


@pytest.mark.soak
def test_products_of_random_shapes(kernels: Kernels) -> None:
    rng = np.random.default_rng(2)
    kinds = [Quantization.Q4_0, Quantization.Q4_1, Quantization.Q8_0, Quantization.F32]
    for _ in range(NUM_ROUNDS):
        size = (int(rng.integers(1, 200)), 32 * int(rng.integers(1, 30)))
        weight = packed(kernels, stored(torch.randn(size), kinds[int(rng.integers(4))]))
        x = torch.randn(int(rng.integers(0, 80)), size[1])
        expected = (eight_bits(x) @ unpacked(kernels, weight).double().T).float()
        error = (multiply(kernels, weight, x, 2) - expected).norm(dim=-1)
        assert (error <= 1e-4 * expected.norm(dim=-1)).all()


@pytest.mark.soak
@pytest.mark.skipif(LIBRARY is None, reason="no kernels were built")
@pytest.mark.skipif("TANDEM_TEST_KERNELS" in os.environ, reason="runs the others")
def test_nothing_is_touched_that_is_not_given(tmp_path: Path) -> None:
    library = tmp_path / "kernels.so"
    subprocess.run(["g++", *SANITIZED, "-o", str(library), *map(str, SOURCES.glob("*.cpp"))], check=True)
    runtime = subprocess.run(["g++", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    environment = {
        **os.environ,
        "TANDEM_TEST_KERNELS": str(library),
        "LD_PRELOAD": runtime.stdout.strip(),
        # Python and torch keep what they have until the end.
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    tests = [f"tests/unit/executor/native/test_{name}.py" for name in ("attention", "linear", "rows", "random_shapes")]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert " passed, 1 skipped" in done.stdout, "the sanitized kernels were not loaded"
