"""Products with packed weights: what is packed comes back, a product is close to the exact one and alone in its row."""

import numpy as np
import pytest
import torch
from gguf import quants
from gguf.constants import GGMLQuantizationType as Quantization
from torch import Tensor

from services.executor.native.binding import Kernels
from services.executor.native.packing import PackedWeight, Packer, Rows
from services.executor.stored import StoredTensor

QUANTIZATIONS = [Quantization.Q4_0, Quantization.Q4_1, Quantization.Q8_0]
# Whole strips, a part of one, fewer rows than a vector has lanes.
SIZES = [(64, 32), (100, 96), (5, 576), (33, 64)]


def stored(weight: Tensor, quantization: Quantization) -> StoredTensor:
    raw = quants.quantize(weight.numpy(), quantization).view(np.uint8).reshape(len(weight), -1)
    return StoredTensor("w", tuple(weight.shape), quantization, raw)


def packed(kernels: Kernels, tensor: StoredTensor, num_threads: int = 2) -> PackedWeight:
    return Packer(kernels, num_threads).pack([Rows(tensor, np.arange(tensor.shape[0]))])


def multiply(kernels: Kernels, weight: PackedWeight, x: Tensor, num_threads: int = 1) -> Tensor:
    out = torch.full((len(x), weight.struct.rows), torch.nan)
    kernels.linear(weight.struct, x.data_ptr(), len(x), out.data_ptr(), num_threads)
    return out


def unpacked(kernels: Kernels, weight: PackedWeight) -> Tensor:
    ids = torch.arange(weight.struct.rows)
    out = torch.empty(len(ids), weight.struct.columns)
    kernels.embed(weight.struct, ids.data_ptr(), len(ids), out.data_ptr())
    return out


def eight_bits(x: Tensor) -> Tensor:
    """x as the kernels see it: blocks of 32 rounded to 255 steps, in float32 as they do it."""
    blocks = x.view(len(x), x.shape[1] // 32, 32)
    most = blocks.abs().amax(-1, keepdim=True)
    steps = (blocks * torch.where(most > 0, torch.full_like(most, 127.0) / most, 0.0)).round()
    return (steps.double() * (most / 127)).view(x.shape)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_stored_values_come_back_as_they_were(
    kernels: Kernels, quantization: Quantization, size: tuple[int, int]
) -> None:
    tensor = stored(torch.randn(size), quantization)
    values = unpacked(kernels, packed(kernels, tensor))
    # Q4_0's offset of -8 steps is kept as a half, like its scale: exact, for 8 is a power of two.
    torch.testing.assert_close(values, torch.from_numpy(tensor.floats(0, size[0])), atol=0, rtol=1e-6)


def test_plain_floats_become_eight_bits(kernels: Kernels) -> None:
    weight = torch.randn(40, 64)
    values = unpacked(kernels, packed(kernels, stored(weight, Quantization.F32)))
    step = weight.view(40, 2, 32).abs().amax(-1, keepdim=True) / 127
    assert ((values - weight).view(40, 2, 32).abs() <= step * 0.51).all()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_a_product_is_that_of_the_rounded_activations(
    kernels: Kernels, quantization: Quantization, size: tuple[int, int]
) -> None:
    weight = packed(kernels, stored(torch.randn(size), quantization))
    x = torch.randn(9, size[1]) * torch.tensor([1e-3, 1.0, 50.0]).repeat(3)[:, None]
    expected = eight_bits(x) @ unpacked(kernels, weight).double().T
    scale = x.norm(dim=-1, keepdim=True).double()
    torch.testing.assert_close(multiply(kernels, weight, x).double() / scale, expected / scale, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_extreme_values_do_not_overflow(kernels: Kernels, quantization: Quantization) -> None:
    weight = torch.ones(32, 64)
    weight[:, ::2] = -1
    x = torch.stack((torch.ones(64), weight[0], -weight[0], torch.zeros(64)))
    packed_weight = packed(kernels, stored(weight, quantization))
    exact = x.double() @ unpacked(kernels, packed_weight).double().T
    torch.testing.assert_close(multiply(kernels, packed_weight, x).double(), exact, atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 31, 32, 33, 70])
def test_a_row_is_the_same_bit_for_bit_in_any_company(
    kernels: Kernels, quantization: Quantization, num_rows: int
) -> None:
    weight = packed(kernels, stored(torch.randn(70, 96), quantization))
    x = torch.randn(num_rows, 96)
    together = multiply(kernels, weight, x, num_threads=2)
    assert torch.equal(together, torch.cat([multiply(kernels, weight, row[None]) for row in x]))


def test_a_bias_is_added(kernels: Kernels) -> None:
    tensor = stored(torch.randn(35, 32), Quantization.Q8_0)
    bias = np.random.default_rng(0).normal(size=35).astype(np.float32)
    plain = packed(kernels, tensor)
    biased = Packer(kernels, 1).pack([Rows(tensor, np.arange(35))], bias=bias)
    x = torch.randn(3, 32)
    assert torch.equal(multiply(kernels, biased, x), multiply(kernels, plain, x) + torch.from_numpy(bias))


def test_tensors_are_stacked_and_their_rows_put_in_order(kernels: Kernels) -> None:
    first, second = (stored(torch.randn(rows, 64), Quantization.Q4_1) for rows in (6, 4))
    order = np.array([9, 0, 6, 3, 1, 2, 8, 7, 5, 4])
    parts = [Rows(first, np.array([5, 4, 3, 2, 1, 0])), Rows(second, np.arange(4))]
    weight = Packer(kernels, 2).pack(parts, order)
    stack = np.concatenate((first.floats(0, 6)[::-1], second.floats(0, 4)))[order]
    torch.testing.assert_close(unpacked(kernels, weight), torch.from_numpy(stack))


def test_tensors_of_different_kinds_are_stacked_as_eight_bits(kernels: Kernels) -> None:
    weights = torch.randn(2, 4, 32)
    parts = [Rows(stored(weight, kind), np.arange(4)) for weight, kind in zip(weights, QUANTIZATIONS[1:], strict=True)]
    values = unpacked(kernels, Packer(kernels, 1).pack(parts))
    torch.testing.assert_close(values, weights.flatten(0, 1), atol=0.4, rtol=0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_row_alone(kernels: Kernels, value: float) -> None:
    weight = packed(kernels, stored(torch.randn(32, 64), Quantization.Q4_1))
    x = torch.randn(6, 64)
    clean = multiply(kernels, weight, x)
    x[2, 40] = value
    spoiled = multiply(kernels, weight, x)
    assert not spoiled[2].isfinite().any()
    assert torch.equal(spoiled[[0, 1, 3, 4, 5]], clean[[0, 1, 3, 4, 5]])


def test_no_tokens_are_no_work(kernels: Kernels) -> None:
    weight = packed(kernels, stored(torch.randn(32, 64), Quantization.Q4_1))
    assert multiply(kernels, weight, torch.zeros(0, 64)).shape == (0, 32)
