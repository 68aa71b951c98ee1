"""torch's arrays, and KV memory seen as them: see arrays.py, kv_cache.py."""

from collections.abc import Sequence

import torch
from torch import Tensor

from services.executor.batch import F32, I64
from services.executor.capacity import Capacity
from services.executor.kv_cache import BlockShape, KvCache, Raw, ValueType

_TYPES: dict[ValueType, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "uint8": torch.uint8,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


class TorchArrays:
    """Tensors on any device."""

    def of(self, indices: I64) -> Tensor:
        """On the CPU."""
        return torch.from_numpy(indices)

    def pick(self, values: Tensor, rows: I64) -> Tensor:
        """By their indices."""
        return values.index_select(0, torch.from_numpy(rows).to(values.device))

    def cut(self, values: Tensor, first: int, last: int) -> Tensor:
        """Some rows in a sequence."""
        return values[first:last]

    def stack(self, parts: Sequence[Tensor]) -> Tensor:
        """One after the other, copied."""
        return torch.cat(list(parts))

    def floats(self, values: Tensor) -> F32:
        """Waits for a device."""
        numbers: F32 = values.detach().cpu().float().contiguous().numpy()
        return numbers


TORCH = TorchArrays()


def dtype_of(shape: BlockShape) -> torch.dtype:
    """What torch calls the type of the values of such blocks."""
    return _TYPES[shape.value_type]


def plain_blocks(block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> BlockShape:
    """[block_size, kv_heads, head_dim]: what the plain torch operations read."""
    cells = (block_size, num_kv_heads, head_dim)
    return BlockShape(cells, cells, _NAMES[dtype])


def open_kv(capacity: Capacity, num_layers: int, shape: BlockShape) -> KvCache[Tensor]:
    """KV memory of the host as tensors."""
    return KvCache(capacity, num_layers, shape, _as_tensor)


def _as_tensor(pool: Raw, value_type: ValueType) -> Tensor:
    return torch.from_numpy(pool).view(_TYPES[value_type])
