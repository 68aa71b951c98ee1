"""How many KV blocks there are: as configured, by memory, never more than can be used, never too few."""

import pytest

from services.executor.capacity import MIB, count_blocks, count_host_blocks, free_memory
from services.runtime.settings import ExecutorSettings, SettingsError

TOKEN_BYTES = 1024


@pytest.mark.parametrize(
    ("settings", "free_bytes", "num_blocks"),
    [
        (ExecutorSettings(num_blocks=17, kv_memory_mb=1), 0, 17),
        (ExecutorSettings(kv_memory_mb=2), 0, 128),
        (ExecutorSettings(), 4 * MIB, 128),
        (ExecutorSettings(block_size=32), 4 * MIB, 64),
        (ExecutorSettings(max_rows=2), 1 << 40, 1 + 2 * 63),
    ],
    ids=["configured", "configured memory", "half of what is free", "larger blocks", "all that is useful"],
)
def test_the_pool_is_as_large_as_told(settings: ExecutorSettings, free_bytes: int, num_blocks: int) -> None:
    assert count_blocks(settings, TOKEN_BYTES, context_length=1000, free_bytes=free_bytes) == num_blocks


@pytest.mark.parametrize("settings", [ExecutorSettings(num_blocks=1), ExecutorSettings()])
def test_a_pool_without_a_usable_block_is_refused_by_name(settings: ExecutorSettings) -> None:
    with pytest.raises(SettingsError, match=r"executor\.num_blocks"):
        count_blocks(settings, TOKEN_BYTES, context_length=1000, free_bytes=16 * 1024)


def test_free_memory_is_that_of_this_machine() -> None:
    assert MIB < free_memory() < 1 << 50


@pytest.mark.parametrize(
    ("settings", "num_host_blocks"),
    [
        (ExecutorSettings(), 0),
        (ExecutorSettings(swap_space_mb=2), 128),
        (ExecutorSettings(swap_space_mb=2, block_size=32), 64),
        (ExecutorSettings(swap_space_mb=2, num_host_blocks=5), 5),
    ],
)
def test_the_host_pool_is_as_large_as_told(settings: ExecutorSettings, num_host_blocks: int) -> None:
    assert count_host_blocks(settings, TOKEN_BYTES) == num_host_blocks
