"""Whether the device computes what it should: attention by attention, kernel by kernel, then whole steps.

The oracles are plain torch in float32: ReferenceAttention and ReferenceOperations on the CPU. Errors are relative, the
norm of the difference over the norm of the truth; output memory is not trusted to be clean, and cells that nobody owns
are NaN.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.executor.attention import attend_paged
from services.executor.batch import I32
from services.executor.cuda import gumbel
from services.executor.cuda.choice import choose, facts_of
from services.executor.cuda.device import Device
from services.executor.cuda.device_operations import PlainOperations, TritonOperations
from services.executor.cuda.opening import open_draw
from services.executor.draws import draw_bits
from services.executor.inputs import StepInputs
from services.executor.kv_cache import Pools
from services.executor.operations import ReferenceOperations
from services.executor.rope import RopeTables
from services.executor.rope_angles import make_angles
from services.runtime.settings import SettingsError
from tests.gpu.bench_rig import BLOCK_SIZE

BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
HEADS = [(9, 3, 64), (32, 8, 128), (16, 8, 64)]
SMALL_HEADS = [(6, 2, 16)]
ROWS = {
    "decode": [(1, 1), (1, 16), (1, 17), (1, 700)],
    "prompts": [(1, 1), (7, 7), (130, 130)],
    "chunks": [(64, 300), (1, 5), (3, 19)],
}
EPS = 1e-5


@dataclass(frozen=True)
class Finding:
    """One comparison. error: relative, or how many of a hundred differ; bound: what it must not exceed."""

    name: str
    error: float
    bound: float

    @property
    def is_good(self) -> bool:
        return self.error <= self.bound  # false for NaN too


def difference(found: Tensor, truth: Tensor) -> float:
    """Relative."""
    found, truth = found.double().cpu(), truth.double().cpu()
    return float((found - truth).norm() / truth.norm().clamp(min=1e-30))


def attentions(device: Device, is_dry: bool) -> Iterator[Finding]:
    """Every implementation that can run here, at every type that it takes."""
    for dtype in BOUNDS:
        facts = facts_of(device.target, dtype, BLOCK_SIZE)
        for name in ("flash3", "triton", "gather"):
            try:
                choice = choose(facts, name)
            except SettingsError:
                continue
            operations = PlainOperations(choice, device.num_processors, device.target)
            for heads in SMALL_HEADS if is_dry else HEADS:
                for what, rows in ROWS.items():
                    for window in (0, 9):
                        label = f"attention {name} {dtype} {heads} {what} window {window}"
                        error = _attention_error(operations, device, dtype, (heads, rows, window))
                        yield Finding(label, error, BOUNDS[dtype])


def _attention_error(
    operations: PlainOperations,
    device: Device,
    dtype: torch.dtype,
    case: tuple[tuple[int, int, int], list[tuple[int, int]], int],
) -> float:
    (num_heads, num_kv_heads, head_dim), rows, window = case
    generator = torch.Generator().manual_seed(1)
    kv_lens: I32 = np.array([length for _, length in rows], np.int32)
    cu_seqlens_q = np.cumsum([0, *(count for count, _ in rows)]).astype(np.int32)
    widths = -(-kv_lens // BLOCK_SIZE)
    blocks = np.random.default_rng(1).permutation(np.arange(1, int(widths.sum()) + 1, dtype=np.int32))
    table = np.zeros((len(rows), int(widths.max())), np.int32)
    shape = (len(blocks) + 1, BLOCK_SIZE, num_kv_heads, head_dim)
    pools = Pools(*(torch.randn(shape, generator=generator).to(dtype) for _ in range(2)))
    for row, first in enumerate(np.cumsum(widths) - widths):
        own = blocks[first : first + widths[row]]
        table[row, : widths[row]] = own
        if kv_lens[row] % BLOCK_SIZE:
            for pool in pools:
                pool[int(own[-1]), int(kv_lens[row]) % BLOCK_SIZE :] = torch.nan
    q = torch.randn(int(cu_seqlens_q[-1]), num_heads, head_dim, generator=generator).to(dtype)
    wide = Pools(*(pool.float() for pool in pools))
    truth = attend_paged(q.float(), wide, cu_seqlens_q, kv_lens, table, window)
    on_device = Pools(*(pool.to(device.target) for pool in pools))
    with device.working():
        plan = operations.prepare(cu_seqlens_q, kv_lens, table, BLOCK_SIZE)
        found = operations.attend(q.to(device.target), on_device, plan, window)
    device.synchronize()
    return difference(found, truth)


def kernels(device: Device, is_dry: bool) -> Iterator[Finding]:
    """The operations outside attention, as they are chosen for the type."""
    for dtype, bound in BOUNDS.items():
        choice = choose(facts_of(device.target, dtype, BLOCK_SIZE))
        kind = TritonOperations if "triton" in (choice.decode, choice.mixed) else PlainOperations
        operations = kind(choice, device.num_processors, device.target)
        for num_tokens, size in ((1, 64), (5, 96)) if is_dry else ((1, 576), (64, 4096), (300, 2048)):
            for name, error in _operation_errors(operations, device, torch.empty(num_tokens, size, dtype=dtype)):
                yield Finding(f"{name} {dtype} {num_tokens} x {size}", error, bound)
    yield from _draws(device, 500 if is_dry else 128256)


def _operation_errors(operations: PlainOperations, device: Device, like: Tensor) -> Iterator[tuple[str, float]]:
    oracle = ReferenceOperations()
    generator = torch.Generator().manual_seed(2)
    x, delta, both = (
        torch.randn(like.shape[0], size, generator=generator).to(like.dtype)
        for size in (like.shape[1], like.shape[1], 2 * like.shape[1])
    )
    weight = torch.rand(like.shape[1], generator=generator) + 0.5
    own = [tensor.to(device.target) for tensor in (x, delta, both, weight)]
    with device.working():
        normed = operations.normalize(own[0], own[3], EPS)
        summed = operations.add_normalize(own[0].clone(), own[1], own[3], EPS)
        gated = operations.gate(own[2])
    device.synchronize()
    yield "normalize", difference(normed, oracle.normalize(x.float(), weight, EPS))
    truth = oracle.add_normalize(x.float(), delta.float(), weight, EPS)
    yield "add", difference(summed[0], truth[0])
    yield "add_normalize", difference(summed[1], truth[1])
    yield "gate", difference(gated, oracle.gate(both.float()))
    yield "rotate_and_store", _rotation_error(operations, device, like)


def _rotation_error(operations: PlainOperations, device: Device, like: Tensor) -> float:
    oracle, num_tokens = ReferenceOperations(), like.shape[0]
    qkv = torch.randn(num_tokens, 10, 64, generator=torch.Generator().manual_seed(3)).to(like.dtype)
    positions = torch.arange(num_tokens, dtype=torch.int32)
    cells = torch.randperm(20 * BLOCK_SIZE, generator=torch.Generator().manual_seed(4))[:num_tokens].int()
    tables = RopeTables.of(make_angles(10_000.0, 64, num_tokens))

    def turned(by: Callable[..., Tensor], on: torch.device, dtype: torch.dtype, index: torch.dtype) -> list[Tensor]:
        pools = Pools(*(torch.zeros(20, BLOCK_SIZE, 2, 64, dtype=dtype, device=on) for _ in range(2)))
        rope = RopeTables(tables.cos.to(on), tables.sin.to(on))
        inputs: StepInputs[Tensor, None] = StepInputs(positions.to(on), positions.to(on), cells.to(on, index), None)
        return [by(qkv.to(on, dtype), rope, inputs, pools), pools.keys, pools.values]

    truth = turned(oracle.rotate_and_store, torch.device("cpu"), torch.float32, torch.int64)
    with device.working():
        found = turned(operations.rotate_and_store, device.target, like.dtype, torch.int32)
    device.synchronize()
    return max(difference(own, true) for own, true in zip(found, truth, strict=True))


def _draws(device: Device, vocab_size: int) -> Iterator[Finding]:
    """The same noise gives the same tokens, save where two scores are within a rounding of each other."""
    num_rows = 64
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(6)) * 3
    bits = torch.from_numpy(draw_bits(np.arange(num_rows, dtype=np.uint64), np.full(num_rows, 5)).view(np.int64))
    draw = open_draw(choose(facts_of(device.target, torch.float32, BLOCK_SIZE)))
    for name, temperature in (("greedy", 0.0), ("drawn", 1.0)):
        temperatures = torch.full((num_rows,), temperature)
        truth, found = (torch.zeros(2, num_rows, dtype=torch.int32, device=on) for on in ("cpu", device.target))
        gumbel.draw(logits, temperatures, bits, truth)
        with device.working():
            draw(logits.to(device.target), temperatures.to(device.target), bits.to(device.target), found)
        device.synchronize()
        differing = 100 * float((found.cpu() != truth).float().mean())
        yield Finding(f"tokens {name}, of a hundred that differ", differing, 0.0 if name == "greedy" else 2.0)
