"""The kernels that take one token at a time, against the plain torch operations."""

import numpy as np
import pytest
import torch

from services.executor.inputs import StepInputs
from services.executor.kv_cache import Pools
from services.executor.native import binding
from services.executor.native.binding import Kernels, KvType
from services.executor.operations import ReferenceOperations
from services.executor.rope import RopeTables
from services.executor.rope_angles import make_angles
from tests.unit.executor.native.cells import native_pools

REFERENCE = ReferenceOperations()
EPS = 1e-5
SIZES = [1, 7, 8, 33, 64, 576, 1000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("has_delta", [False, True])
def test_add_and_normalize(kernels: Kernels, size: int, has_delta: bool) -> None:
    hidden, delta, weight = torch.randn(5, size), torch.randn(5, size), torch.randn(size)
    total, expected = REFERENCE.add_normalize(hidden, delta if has_delta else torch.zeros(1), weight, EPS)
    out = torch.empty_like(hidden)
    given = delta.data_ptr() if has_delta else None
    kernels.add_normalize(hidden.data_ptr(), given, weight.data_ptr(), EPS, 5, size, out.data_ptr(), 2)
    assert torch.equal(hidden, total)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("size", SIZES)
def test_gate(kernels: Kernels, size: int) -> None:
    gate_up = torch.randn(3, 2 * size) * 5
    gate_up[:, 0] = torch.tensor([-200.0, 0.0, 200.0])  # where e^x leaves the range
    out = torch.empty(3, size)
    kernels.gate(gate_up.data_ptr(), 3, size, out.data_ptr(), 2)
    torch.testing.assert_close(out, REFERENCE.gate(gate_up), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kv_type", KvType)
@pytest.mark.parametrize("heads", [(9, 3, 64), (2, 2, 128), (4, 1, 16), (3, 1, 48)], ids=str)
def test_rotate_and_store(kernels: Kernels, heads: tuple[int, int, int], kv_type: KvType) -> None:
    num_heads, num_kv_heads, head_dim = heads
    empty = torch.zeros(6, 16, num_kv_heads, head_dim)
    expected_pools, pools = Pools(empty.clone(), empty.clone()), native_pools(Pools(empty, empty), num_heads, kv_type)
    qkv = torch.randn(4, num_heads + 2 * num_kv_heads, head_dim)
    positions, cells = torch.tensor([0, 5, 90, 3]), torch.tensor([17, 95, 0, 40])
    tables = RopeTables.of(make_angles(10000.0, head_dim, 100))
    no_rows = REFERENCE.prepare(np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros((0, 0), np.int32), 16)
    inputs = StepInputs(positions, positions, cells, no_rows)
    expected = REFERENCE.rotate_and_store(qkv.clone(), tables, inputs, expected_pools)
    step = binding.Step(tokens=4, positions=positions.data_ptr(), slot_mapping=cells.data_ptr(), threads=2)
    kernels.rotate_and_store(
        pools.shape, step, tables.cos.data_ptr(), tables.sin.data_ptr(), qkv.data_ptr(), pools.struct
    )
    torch.testing.assert_close(qkv[:, :num_heads], expected)
    tolerance = {KvType.FLOAT32: 1e-6, KvType.FLOAT16: 2e-3, KvType.INT8: 2e-2}[kv_type]
    for stored, wanted in zip(pools.plain(), expected_pools, strict=True):
        torch.testing.assert_close(stored.nan_to_num(), wanted, atol=tolerance, rtol=tolerance)
