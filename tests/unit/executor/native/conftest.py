"""The native kernels as the package's build left them, variant by variant; without them these tests are skipped.

TANDEM_TEST_KERNELS names another library of them: one with AddressSanitizer in it, say.
"""

import ctypes
import os
from pathlib import Path

import pytest

from services.executor.native.binding import Kernels, KernelsError, built_library, open_kernels, open_library, variants


def library_path() -> Path:
    """Raises KernelsError when nothing was built here."""
    named = os.environ.get("TANDEM_TEST_KERNELS")
    return Path(named) if named else built_library()


def library() -> ctypes.CDLL | None:
    """None when nothing was built here."""
    try:
        return open_library(library_path())
    except KernelsError:
        return None


LIBRARY = library()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Whoever takes `kernels` runs once for each variant that this processor can run."""
    if "kernels" in metafunc.fixturenames:
        names = variants(LIBRARY) if LIBRARY else [pytest.param("", marks=pytest.mark.skip("no kernels were built"))]
        metafunc.parametrize("kernels", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    assert LIBRARY is not None
    return open_kernels(LIBRARY, request.param)
