"""How much an executor holds: what Ready reports, and how many KV blocks fit into memory.

Knows nothing of torch. Sizes are bytes. num_blocks counts the dummy block 0, so a pool has at least two.
"""

from dataclasses import dataclass
from pathlib import Path

from services.runtime.settings import ExecutorSettings, SettingsError
from services.wire.messages import ModelCard

MIB = 1 << 20
# The share of free memory that the KV pool may take when nothing is configured.
KV_SHARE = 2

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the scheduler must know of this executor before it plans anything."""

    num_blocks: int
    block_size: int
    max_rows: int
    card: ModelCard
    num_host_blocks: int = 0

    @property
    def max_blocks_per_slot(self) -> int:
        """Blocks of the longest sequence the model can hold."""
        return -(-self.card.context_length // self.block_size)


def count_blocks(settings: ExecutorSettings, bytes_per_token: int, context_length: int, free_bytes: int) -> int:
    """Blocks of the KV pool: as configured, else what the configured memory holds, else half of what is free.

    Never more than every slot at full context could use. Raises SettingsError when not one block fits.
    """
    if settings.num_blocks:
        num_blocks = settings.num_blocks
    else:
        budget = settings.kv_memory_mb * MIB if settings.kv_memory_mb else free_bytes // KV_SHARE
        num_useful = 1 + settings.max_rows * -(-context_length // settings.block_size)
        num_blocks = min(budget // (bytes_per_token * settings.block_size), num_useful)
    if num_blocks < 2:
        raise SettingsError("executor.num_blocks, executor.kv_memory_mb: the KV pool must hold block 0 and another")
    return num_blocks


def count_host_blocks(settings: ExecutorSettings, bytes_per_token: int) -> int:
    """Blocks of the host pool, where swapped-out KV lies: as configured, else what the configured space holds."""
    if settings.num_host_blocks:
        return settings.num_host_blocks
    return settings.swap_space_mb * MIB // (bytes_per_token * settings.block_size)


def free_memory() -> int:
    """Bytes that this process may still take: what the machine has available, within its control group's limit."""
    free = _available_bytes(_MEMINFO.read_text())
    limit, usage = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if limit.is_file() and usage.is_file() and (value := limit.read_text().strip()) != "max":
        free = min(free, max(0, int(value) - int(usage.read_text())))
    return free


def _available_bytes(meminfo: str) -> int:
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo names no MemAvailable")
