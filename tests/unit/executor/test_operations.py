"""The operations of a forward pass: the plain torch ones against the formulas, written once more in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor

from services.executor.batch import I32
from services.executor.capacity import Capacity
from services.executor.inputs import StepInputs
from services.executor.operations import ReferenceOperations
from services.executor.rope import RopeTables
from services.executor.rope_angles import make_angles
from services.executor.torch_arrays import open_kv, plain_blocks
from tests.unit.executor.rig import small_capacity

OPERATIONS = ReferenceOperations()
EPS = 1e-5


def capacity() -> Capacity:
    return small_capacity(vocab_size=10, num_blocks=6)


@pytest.mark.parametrize("shape", [(1, 64), (5, 96), (3, 4, 16)])
def test_a_norm_is_taken_over_the_last_dimension(shape: tuple[int, ...]) -> None:
    x, delta, weight = torch.randn(shape), torch.randn(shape), torch.randn(shape[-1])

    def norm(x: Tensor) -> Tensor:
        return (x.double() / (x.double().square().mean(-1, keepdim=True) + EPS).sqrt() * weight).float()

    torch.testing.assert_close(OPERATIONS.normalize(x, weight, EPS), norm(x))
    total, normed = OPERATIONS.add_normalize(x.clone(), delta, weight, EPS)
    torch.testing.assert_close((total, normed), (x + delta, norm(x + delta)))


def test_halves_of_other_types_keep_their_type() -> None:
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    assert OPERATIONS.normalize(x, torch.ones(64, dtype=torch.bfloat16), EPS).dtype == torch.bfloat16


def test_queries_and_keys_turn_and_only_the_cells_of_new_tokens_are_written() -> None:
    num_heads, num_kv_heads, head_dim = 6, 2, 8
    kv = open_kv(capacity(), 1, plain_blocks(4, num_kv_heads, head_dim))
    positions, cells = torch.tensor([0, 3, 11]), torch.tensor([5, 13, 22])
    qkv = torch.randn(3, num_heads + 2 * num_kv_heads, head_dim)
    inputs = StepInputs(positions, positions, cells, ReferenceOperations().prepare(*no_rows(), block_size=4))
    tables = RopeTables.of(make_angles(100.0, head_dim, 20))
    queries = OPERATIONS.rotate_and_store(qkv.clone(), tables, inputs, kv.layers[0])

    frequencies = 100.0 ** (-torch.arange(head_dim // 2, dtype=torch.float64) / (head_dim // 2))
    turns = torch.polar(torch.ones(3, 1, head_dim // 2).double(), positions[:, None, None] * frequencies)
    turned = torch.complex(qkv[..., : head_dim // 2].double(), qkv[..., head_dim // 2 :].double()) * turns
    expected = torch.cat((turned.real, turned.imag), -1).float()
    torch.testing.assert_close(queries, expected[:, :num_heads])
    keys, values = (pool.flatten(0, 1) for pool in kv.layers[0])
    torch.testing.assert_close(keys[cells], expected[:, num_heads : num_heads + num_kv_heads])
    torch.testing.assert_close(values[cells], qkv[:, num_heads + num_kv_heads :])
    others = torch.ones(len(keys), dtype=torch.bool).index_fill_(0, cells, False)
    assert not keys[others].any() and not values[others].any()


def no_rows() -> tuple[I32, I32, I32]:
    return np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros((0, 0), np.int32)


def test_the_gate_is_silu_of_the_first_half_times_the_second() -> None:
    gate, up = torch.randn(4, 10), torch.randn(4, 10)
    expected = gate.double() / (1 + (-gate.double()).exp()) * up
    torch.testing.assert_close(OPERATIONS.gate(torch.cat((gate, up), 1)), expected.float())


def test_a_linear_may_have_a_bias() -> None:
    weight, bias, x = torch.randn(6, 4), torch.randn(6), torch.randn(3, 4)
    torch.testing.assert_close(OPERATIONS.pack(weight, bias)(x), x @ weight.T + bias)
