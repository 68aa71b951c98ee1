"""Whole steps: against the CPU, captured or not, one to three in flight, with nothing that waits for the device."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.executor.attention import ReferencePlan
from services.executor.batch import Rows, pack
from services.executor.capacity import Capacity
from services.executor.cuda.device import Device
from services.executor.inputs import StepInputs
from services.executor.model import Llama
from services.executor.operations import ReferenceOperations
from services.executor.torch_arrays import open_kv, plain_blocks
from services.wire.messages import ModelCard, RowFlag, Sampling
from tests.gpu.bench_rig import BLOCK_SIZE, Bench, Decoding, Setup, open_bench
from tests.gpu.correctness import Finding, difference
from tests.gpu.shapes import SMALL

_cuda: Any = torch.cuda

# Prefill of different lengths, one of them longer than a tile of queries.
PROMPTS = (1, 7, 90, 33)
LOGIT_BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
DRAWN = Sampling(temperature=1.0, top_p=0.9)


@dataclass(frozen=True)
class Plan:
    """What is compared: rows of a decode step, buckets that hold it, steps, positions before them."""

    num_rows: int
    buckets: tuple[int, ...]
    num_steps: int
    context: int


PLAN, DRY_PLAN = Plan(8, (8, 16), 48, 300), Plan(3, (3,), 5, 20)


def against_the_cpu(device: Device) -> Iterator[Finding]:
    """Logits of a mixed step of a small model, whose weights are the same values on both sides."""
    for dtype, bound in LOGIT_BOUNDS.items():
        bench = open_bench(device, Setup(SMALL, dtype, len(PROMPTS), 96))
        yield Finding(f"logits of a prefill step {dtype}", _logit_error(bench), bound)


def _logit_error(bench: Bench) -> float:
    counts = np.array(PROMPTS, np.int32)
    num_tokens = int(counts.sum())
    rows = Rows(
        slots=np.arange(1, len(PROMPTS) + 1, dtype=np.int32),
        generations=np.ones(len(PROMPTS), np.int32),
        positions=np.zeros(len(PROMPTS), np.int32),
        counts=counts,
        flags=np.full(len(PROMPTS), int(RowFlag.SAMPLE), np.int32),
        host_tokens=np.random.default_rng(2).integers(0, SMALL.vocab_size, num_tokens).astype(np.int32),
    )
    batch = pack(rows, bench.tables, BLOCK_SIZE, 0, received_ns=0)
    model, target = bench.made.model, bench.device.target
    lasts = torch.from_numpy(batch.last_tokens)

    def inputs(plan: Any, on: torch.device) -> StepInputs[Tensor, Any]:
        ids, positions, cells = (
            torch.from_numpy(array).to(on) for array in (batch.token_ids, batch.position_ids, batch.slot_mapping)
        )
        return StepInputs(ids, positions, cells, plan)

    with torch.inference_mode(), bench.device.working():
        plan = bench.operations.prepare(batch.cu_seqlens_q, batch.kv_lens, batch.block_tables, BLOCK_SIZE)
        hidden = model.forward(inputs(plan, target), bench.backend._kv)
        found = model.logits(hidden.index_select(0, lasts.to(target)))
    bench.device.synchronize()
    twin = _on_the_cpu(bench)
    card = ModelCard(SMALL.name, SMALL.vocab_size, SMALL.context_length, SMALL.eos_token_ids)
    capacity = Capacity(bench.backend.capacity.num_blocks, BLOCK_SIZE, len(PROMPTS), card)
    kv = open_kv(capacity, SMALL.num_layers, plain_blocks(BLOCK_SIZE, SMALL.num_kv_heads, SMALL.head_dim))
    reference = twin.prepare(batch.cu_seqlens_q, batch.kv_lens, batch.block_tables, BLOCK_SIZE)
    with torch.inference_mode():
        truth = twin.logits(twin.forward(inputs(reference, torch.device("cpu")), kv).index_select(0, lasts))
    return difference(found, truth)


def _on_the_cpu(bench: Bench) -> Llama[ReferencePlan]:
    """The same model in float32 there. Its products are told by what they make of the unit vectors."""
    model = bench.made.model
    operations = ReferenceOperations()

    def moved(product: Any, columns: int) -> Any:
        unit = torch.eye(columns, dtype=model.embedding.dtype, device=model.embedding.device)
        return operations.pack(product(unit).T.float().cpu().contiguous())

    hidden, ffn, queries = SMALL.hidden_size, SMALL.ffn_size, SMALL.num_heads * SMALL.head_dim
    with torch.inference_mode(), bench.device.working():
        layers = [
            replace(
                layer,
                qkv=moved(layer.qkv, hidden),
                attention_out=moved(layer.attention_out, queries),
                gate_up=moved(layer.gate_up, hidden),
                down=moved(layer.down, ffn),
                attention_norm=layer.attention_norm.cpu(),
                ffn_norm=layer.ffn_norm.cpu(),
                rope=type(layer.rope)(layer.rope.cos.cpu(), layer.rope.sin.cpu()),
            )
            for layer in model.layers
        ]
        embedding, head = model.embedding.float().cpu(), moved(model.head, hidden)
    return Llama(SMALL, embedding, layers, model.norm.cpu(), head, operations)


def in_flight_and_captured(device: Device, plan: Plan, setup: Setup) -> Iterator[Finding]:
    """Tokens of decode steps: depth 1, 2, 3, captured or not. As many rows as a bucket has, so all shapes agree."""
    for what, sampling in (("greedy", Sampling(temperature=0.0)), ("drawn", DRAWN)):
        found: dict[str, list[list[int]]] = {}
        for captured in (False, True):
            bench = open_bench(device, replace(setup, buckets=plan.buckets if captured else ()))
            for depth in (1, 2, 3):
                decoding = Decoding(bench, plan.num_rows, plan.context, sampling)
                found[f"{'captured' if captured else 'eager'}, depth {depth}"] = decoding.run(
                    depth, plan.num_steps
                ).tokens
        truth = np.array(found["eager, depth 1"])
        for name, tokens in found.items():
            differing = 100 * float((np.array(tokens) != truth).mean())
            yield Finding(f"{what} tokens {setup.dtype}, {name}, of a hundred that differ", differing, 0.0)
        yield Finding(f"{what} tokens {setup.dtype}, every step alike", float((truth == truth[0]).all()), 0.0)


def without_waiting(device: Device, plan: Plan, setup: Setup) -> Iterator[Finding]:
    """Steps while every hidden wait of torch's is an error."""
    for captured in (False, True):
        bench = open_bench(device, replace(setup, buckets=plan.buckets if captured else ()))
        decoding = Decoding(bench, plan.num_rows, plan.context, DRAWN)
        decoding.run(2, 4)  # whatever is done at first use
        decoding.begin()
        errors = 0.0
        with _refusing_to_wait(device):
            try:
                for step in range(plan.num_steps):
                    bench.backend.launch(decoding.batch(step)).wait()
            except RuntimeError as error:
                warnings.warn(f"a launch waits for the device: {error}", stacklevel=1)
                errors = 1.0
        yield Finding(f"hidden waits {setup.dtype}, {'captured' if captured else 'eager'}", errors, 0.0)


@contextmanager
def _refusing_to_wait(device: Device) -> Iterator[None]:
    if device.target.type != "cuda":
        yield
        return
    _cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        _cuda.set_sync_debug_mode("default")
