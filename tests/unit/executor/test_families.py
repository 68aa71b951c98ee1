"""Every family against `transformers` in float32: logits of whole, chunked, packed and preempted sequences.

`pytest -rP` of this file prints the table. Preempted: the KV of half a sequence is given to another, which writes over
it, and the first is computed again elsewhere, in other chunks. GGUF: the same weights through a file in that form.
Native: through the CPU kernels, 8 bits at both ends, hence its own tolerance; the others' is of logits of about 3.
"""

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from services.executor.arrays import NUMPY, Arrays, as_stored
from services.executor.batch import Rows, pack
from services.executor.capacity import Capacity
from services.executor.checkpoint import Checkpoint, open_checkpoint
from services.executor.inputs import StepInputs
from services.executor.kv_cache import KvCache
from services.executor.native.binding import KvType, Shape, open_kernels
from services.executor.native.loading import load_native, unsupported
from services.executor.native.model import kv_blocks
from services.executor.native.packing import Packer
from services.executor.operations import ReferenceOperations
from services.executor.runner import Model
from services.executor.torch_arrays import TORCH, open_kv, plain_blocks
from services.executor.weights import load_llama
from services.wire.messages import ModelCard
from tests.unit.executor.native.conftest import LIBRARY
from tests.unit.executor.tiny_families import VARIANTS, VOCAB, Variant, logits_of, make, write_gguf

BLOCK_SIZE, NUM_BLOCKS, WIDTH = 16, 40, 8
TOLERANCE = 1e-4  # of a logit
# Of the norm of a row's logits. 8 bits are off by 0.04 to 0.08; a missing bias, norm or window by 0.34 and more.
NATIVE_TOLERANCE = 0.1
LENGTHS = (50, 1, 17, 33, 9)


@dataclass
class Made:
    """A variant on disk, and its reference."""

    variant: Variant
    reference: Any
    folder: Path


CAPACITY = Capacity(
    NUM_BLOCKS, BLOCK_SIZE, WIDTH, ModelCard(name="", vocab_size=VOCAB, context_length=128, eos_token_ids=())
)


@pytest.fixture(scope="module", params=VARIANTS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the other library's own
        folder = tmp_path_factory.mktemp("family")
        reference = make(VARIANTS[request.param])
        reference.save_pretrained(folder, max_shard_size="200KB")  # in several files
        yield Made(VARIANTS[request.param], reference, folder)


class Sheet:
    """A model, KV memory, and sequences that are computed in pieces, several in a step."""

    def __init__(self, model: Model[Any, Any], kv: KvCache[Any], arrays: Arrays[Any]) -> None:
        self._model, self._kv, self._arrays = model, kv, arrays
        self.free = list(range(1, NUM_BLOCKS))
        random.Random(3).shuffle(self.free)
        self.tables: dict[int, list[int]] = {}

    def step(self, pieces: list[tuple[int, list[int], int, int]]) -> list[Tensor]:
        """pieces: (sequence, its tokens, first, last); the logits of each."""
        table = np.zeros((WIDTH, WIDTH), np.int32)
        for sequence, _, _, last in pieces:
            blocks = self.tables.setdefault(sequence, [])
            while len(blocks) * BLOCK_SIZE < last:
                blocks.append(self.free.pop())
            table[sequence, : len(blocks)] = blocks
        slots, firsts, lasts = (np.array([piece[i] for piece in pieces], np.int32) for i in (0, 2, 3))
        inputs = np.concatenate([np.array(tokens[first:last], np.int32) for _, tokens, first, last in pieces])
        rows = Rows(slots, slots, firsts, lasts - firsts, 0 * slots, inputs)
        batch = pack(rows, table, BLOCK_SIZE, step=1, received_ns=0)
        plan = self._model.prepare(batch.cu_seqlens_q, batch.kv_lens, batch.block_tables, BLOCK_SIZE)
        ids, positions, cells = map(self._arrays.of, (batch.token_ids, batch.position_ids, batch.slot_mapping))
        hidden = self._model.forward(StepInputs(ids, positions, cells, plan), self._kv)
        logits = torch.from_numpy(self._arrays.floats(self._model.logits(hidden)).copy())
        return list(torch.split(logits, (lasts - firsts).tolist()))

    def give_back(self, sequence: int) -> None:
        """Its blocks are the next to be handed out."""
        self.free.extend(self.tables.pop(sequence))


def sheet(checkpoint: Checkpoint) -> Sheet:
    config = checkpoint.config
    blocks = plain_blocks(BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    return Sheet(load_llama(checkpoint, ReferenceOperations()), open_kv(CAPACITY, config.num_layers, blocks), TORCH)


def prompts() -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in LENGTHS]


def whole(sheet: Sheet, tokens: list[int]) -> Tensor:
    return sheet.step([(1, tokens, 0, len(tokens))])[0]


def chunked(sheet: Sheet, tokens: list[int], sizes: tuple[int, ...] = (7, 1, 12)) -> Tensor:
    parts: list[Tensor] = []
    first = 0
    while first < len(tokens):
        last = min(first + sizes[len(parts) % len(sizes)], len(tokens))
        parts += sheet.step([(1, tokens, first, last)])
        first = last
    return torch.cat(parts)


def packed(sheet: Sheet, sequences: list[list[int]]) -> list[Tensor]:
    """All together, each in chunks of its own."""
    rng, done = random.Random(2), [0] * len(sequences)
    parts: list[list[Tensor]] = [[] for _ in sequences]
    while any(first < len(tokens) for first, tokens in zip(done, sequences, strict=True)):
        pieces = []
        for index, tokens in enumerate(sequences):
            last = min(done[index] + rng.choice((1, 1, 3, 10)), len(tokens))
            if last > done[index] and rng.random() < 0.8:
                pieces.append((index, tokens, done[index], last))
        for (index, _, _, last), logits in zip(pieces, sheet.step(pieces) if pieces else [], strict=True):
            done[index] = last
            parts[index].append(logits)
    return [torch.cat(part) for part in parts]


def preempted(sheet: Sheet, tokens: list[int], other: list[int]) -> Tensor:
    half = len(tokens) // 2
    sheet.step([(1, tokens, 0, half)])
    sheet.give_back(1)
    sheet.step([(2, other, 0, len(other))])
    return chunked(sheet, tokens, (5, 20))


def test_logits_are_those_of_transformers(made: Made, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(made.folder)
    assert len(list(made.folder.glob("*.safetensors"))) > 1 and checkpoint.config.family == made.variant.family
    sequences = prompts()
    longest = sequences[0]
    expected = [logits_of(made.reference, tokens) for tokens in sequences]
    found = {
        "whole": (whole(sheet(checkpoint), longest), expected[0]),
        "chunked": (chunked(sheet(checkpoint), longest), expected[0]),
        "packed": (torch.cat(packed(sheet(checkpoint), sequences)), torch.cat(expected)),
        "preempted": (preempted(sheet(checkpoint), longest, sequences[3]), expected[0]),
    }
    if has_gguf(made.variant):
        written = open_checkpoint(write_gguf(made.variant, made.reference, tmp_path / "same.gguf"))
        found["GGUF"] = (chunked(sheet(written), longest), expected[0])
    errors = {check: float((ours - theirs).abs().max()) for check, (ours, theirs) in found.items()}
    spread = float(torch.cat(expected).std())
    print(f"{request.node.callspec.id}: {checkpoint.num_parameters} parameters, logits of {spread:.1f}, largest errors")
    print("  " + ", ".join(f"{check} {error:.1e}" for check, error in errors.items()) + f" (tolerance {TOLERANCE:.0e})")
    assert all(error < TOLERANCE for error in errors.values()), errors


@pytest.mark.skipif(LIBRARY is None, reason="no kernels were built")
def test_the_native_kernels_compute_the_same_model(made: Made, request: pytest.FixtureRequest) -> None:
    checkpoint = open_checkpoint(made.folder)
    config = checkpoint.config
    why_not = unsupported(config, BLOCK_SIZE)
    assert bool(why_not) is (made.variant.family == "smollm3"), why_not
    if why_not:
        print(f"{request.node.callspec.id}: in torch, because {why_not}")
        return
    assert LIBRARY is not None
    shape = Shape(config.num_heads, config.num_kv_heads, config.head_dim, BLOCK_SIZE, KvType.FLOAT16)
    model = load_native(checkpoint, shape, Packer(open_kernels(LIBRARY), 1))
    sequences = prompts()
    expected = torch.cat([logits_of(made.reference, tokens) for tokens in sequences])

    def native_sheet() -> Sheet:
        return Sheet(model, KvCache(CAPACITY, config.num_layers, kv_blocks(shape), as_stored), NUMPY)

    ours = torch.cat(packed(native_sheet(), sequences))
    alone = chunked(native_sheet(), sequences[0])
    assert torch.equal(ours[: len(alone)], alone)  # the same bit for bit, however it is batched
    error = float(((ours - expected).norm(dim=-1) / expected.norm(dim=-1)).mean())
    print(f"{request.node.callspec.id}: native, mean error of a row {error:.3f} (tolerance {NATIVE_TOLERANCE})")
    assert error < NATIVE_TOLERANCE


def has_gguf(variant: Variant) -> bool:
    """A GGUF file says windows of some layers and stated magnitudes nowhere."""
    return not variant.changes.get("use_sliding_window") and "attention_factor" not in variant.rope
