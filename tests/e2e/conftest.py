"""One server on the echo backend for all tests that only talk to it."""

from collections.abc import Iterator

import pytest

from tests.e2e.processes import Settings
from tests.e2e.serving import Serving, serving

# One sequence of a whole context fills the pool, and a step takes long enough to act between two of them.
SETTINGS: Settings = {
    "executor": {"backend": "echo", "context_length": 512, "num_blocks": 33, "step_fixed_us": 2000.0},
    "scheduler": {"max_num_seqs": 4, "max_waiting": 4096, "token_budget": 64},
    "gateway": {"listen": "127.0.0.1:0", "drain_s": 1.0, "max_prompt_bytes": 65536, "metrics_listen": "127.0.0.1:0"},
    "links": {"death_s": 30.0},
}


@pytest.fixture(scope="session")
def echo() -> Iterator[Serving]:
    with serving(SETTINGS) as server:
        yield server
