"""The kernels outside attention, in Triton's interpreter, against the plain torch operations."""

import numpy as np
import pytest
import torch

from services.executor.inputs import StepInputs
from services.executor.kv_cache import Pools
from services.executor.operations import ReferenceOperations
from services.executor.rope import RopeTables
from services.executor.rope_angles import make_angles
from services.executor.torch_arrays import open_kv, plain_blocks
from tests.unit.executor.rig import small_capacity

pytest.importorskip("triton", reason="triton has no wheel for this machine")

from services.executor.cuda import step_kernels

ORACLE = ReferenceOperations()
TYPES = [torch.float32, torch.bfloat16]
EPS = 1e-5


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(0, 64), (1, 64), (5, 96), (3, 4, 16), (2, 577)])
def test_norms(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype)
    torch.testing.assert_close(step_kernels.normalize(x, weight, EPS), ORACLE.normalize(x, weight, EPS))


def test_norms_of_heads_that_lie_among_others() -> None:
    heads = random(3, 8, 16)[:, 2:5]
    weight = random(16)
    torch.testing.assert_close(step_kernels.normalize(heads, weight, EPS), ORACLE.normalize(heads, weight, EPS))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(0, 64), (1, 64), (5, 96), (2, 577)])
def test_sums_and_their_norms(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    hidden, delta, weight = random(*shape, dtype=dtype), random(*shape, dtype=dtype) + 1, random(shape[-1])
    expected = ORACLE.add_normalize(hidden.clone(), delta, weight, EPS)
    torch.testing.assert_close(step_kernels.add_normalize(hidden.clone(), delta, weight, EPS), expected)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 2), (3, 96), (2, 2 * 1500)])
def test_gates(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = random(*shape, dtype=dtype)
    # silu is rounded once more by the oracle than by the kernel.
    rtol, atol = (1.6e-2, 1e-2) if dtype == torch.bfloat16 else (1.3e-6, 1e-5)
    torch.testing.assert_close(step_kernels.gate(gate_up), ORACLE.gate(gate_up), rtol=rtol, atol=atol)


@pytest.mark.parametrize("index_type", [torch.int32, torch.int64])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 128), (2, 1, 24)])
@pytest.mark.parametrize("num_tokens", [0, 1, 5])
def test_rotation_and_what_it_stores(
    num_tokens: int, heads: int, kv_heads: int, head_dim: int, index_type: torch.dtype
) -> None:
    kv = open_kv(small_capacity(num_blocks=6), 2, plain_blocks(4, kv_heads, head_dim))
    positions = torch.arange(num_tokens) * 7
    cells = torch.randperm(24, generator=torch.Generator().manual_seed(0))[:num_tokens]
    tables = RopeTables.of(make_angles(1000.0, head_dim, 64))
    qkv = random(num_tokens, heads + 2 * kv_heads, head_dim)
    no_rows = np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros((0, 0), np.int32)
    inputs = StepInputs(positions, positions, cells, ORACLE.prepare(*no_rows, block_size=4))
    expected = ORACLE.rotate_and_store(qkv.clone(), tables, inputs, kv.layers[0])
    own = qkv.clone()
    places = positions.to(index_type), cells.to(index_type)
    found = step_kernels.rotate_and_store(own, tables, *places, kv.layers[1])
    torch.testing.assert_close(found, expected)
    for pool, other in zip(*kv.layers, strict=True):
        torch.testing.assert_close(other, pool)
    assert torch.equal(own[:, heads:], qkv[:, heads:])


def test_kv_memory_may_be_of_a_smaller_type() -> None:
    pools = Pools(*(torch.zeros(2, 4, 1, 16, dtype=torch.float16) for _ in range(2)))
    qkv, tables = random(1, 3, 16), RopeTables.of(make_angles(1000.0, 16, 8))
    place = torch.tensor([0]), torch.tensor([5])
    step_kernels.rotate_and_store(qkv.clone(), tables, *place, pools)
    torch.testing.assert_close(pools.values[1, 1, 0], qkv[0, 2].half())
    torch.testing.assert_close(pools.keys[1, 1, 0], qkv[0, 1].half())  # position 0 does not turn
