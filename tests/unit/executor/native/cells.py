"""KV memory and steps as the kernels take them, made from what the plain torch operations take."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.executor.batch import I32
from services.executor.kv_cache import Pools
from services.executor.native import binding
from services.executor.native.binding import Kernels, KvType, Shape


@dataclass
class NativePools:
    """keys [blocks, kv_heads, head_dim, block_size], values [blocks, kv_heads, block_size, head_dim]; bytes if INT8."""

    keys: Tensor
    values: Tensor
    shape: Shape

    @property
    def struct(self) -> binding.Pools:
        return binding.Pools(self.keys.data_ptr(), self.values.data_ptr())

    def plain(self) -> Pools[Tensor]:
        """As float32 [blocks, block_size, kv_heads, head_dim]."""
        keys, values = self.keys, self.values
        if self.shape.kv_type == KvType.INT8:
            keys, values = (_from_bytes(pool, self.shape) for pool in (keys, values))
            keys = keys.unflatten(-1, (self.shape.head_dim, -1)) * _scales(self.keys, self.shape)[..., None, :]  # type: ignore[no-untyped-call]
            values = values.unflatten(-1, (-1, self.shape.head_dim)) * _scales(self.values, self.shape)[..., None]  # type: ignore[no-untyped-call]
        return Pools(keys.float().permute(0, 3, 1, 2).contiguous(), values.float().transpose(1, 2).contiguous())


def native_pools(pools: Pools[Tensor], num_heads: int, kv_type: KvType = KvType.FLOAT32) -> NativePools:
    """Pools [blocks, block_size, kv_heads, head_dim], laid out and rounded as the kernels hold them."""
    _, block_size, num_kv_heads, head_dim = pools.keys.shape
    shape = Shape(num_heads, num_kv_heads, head_dim, block_size, kv_type)
    keys, values = pools.keys.permute(0, 2, 3, 1).contiguous(), pools.values.transpose(1, 2).contiguous()
    if kv_type == KvType.INT8:
        return NativePools(_to_bytes(keys, 2), _to_bytes(values, 3), shape)
    dtype = torch.float16 if kv_type == KvType.FLOAT16 else torch.float32
    return NativePools(keys.to(dtype), values.to(dtype), shape)


def _to_bytes(pool: Tensor, axis: int) -> Tensor:
    """One scale for each cell, whose values lie along the axis."""
    scales = pool.abs().amax(axis, keepdim=True) / 127
    values = (pool / scales).round().nan_to_num().to(torch.int8)
    as_bytes = scales.flatten(2).contiguous().view(torch.uint8)
    return torch.cat((values.flatten(2).view(torch.uint8), as_bytes), -1)


def _from_bytes(pool: Tensor, shape: Shape) -> Tensor:
    return pool[..., : shape.block_size * shape.head_dim].view(torch.int8).float()


def _scales(pool: Tensor, shape: Shape) -> Tensor:
    return pool[..., shape.block_size * shape.head_dim :].contiguous().view(torch.float32)


def attend(kernels: Kernels, q: Tensor, pools: NativePools, rows: tuple[I32, I32, I32], window: int) -> Tensor:
    """q [T, heads, head_dim]; rows: cu_seqlens_q, kv_lens, block_table."""
    num_kv_heads, head_dim = pools.shape.kv_heads, pools.shape.head_dim
    qkv = torch.cat((q, torch.full((len(q), 2 * num_kv_heads, head_dim), torch.nan)), 1).contiguous()
    out = torch.full_like(q, torch.nan)
    cu_seqlens_q, kv_lens, block_table = (np.ascontiguousarray(array) for array in rows)
    step = binding.Step(
        rows=len(kv_lens),
        tokens=len(q),
        cu_seqlens_q=cu_seqlens_q.ctypes.data,
        kv_lens=kv_lens.ctypes.data,
        block_table=block_table.ctypes.data,
        table_stride=block_table.shape[1],
        threads=2,
    )
    kernels.attend(pools.shape, step, qkv.data_ptr(), pools.struct, window, out.data_ptr())
    return out
