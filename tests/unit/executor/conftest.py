"""One compute thread for every test: results do not depend on the machine, and tests do not fight for cores."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from services.executor.checkpoint import Checkpoint, open_checkpoint
from services.runtime.models import resolve
from services.runtime.settings import ModelSettings


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The embedded default model."""
    return resolve(ModelSettings())


@pytest.fixture(scope="session")
def default(default_model: Path) -> Checkpoint:
    """Its file, mapped."""
    return open_checkpoint(default_model)
