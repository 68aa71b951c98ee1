"""Rows for the sampler: each a SlotInit and the tokens so far; random ones that ask for anything; the two samplers."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.executor import reference
from services.executor.batch import F32, F64, I64, Mask
from services.executor.masks import TokenMasks, num_words
from services.executor.sampler import Sampled, sample
from services.executor.sampling_state import SamplingState
from services.wire import columns
from services.wire.messages import Sampling, SlotInit


@dataclass(frozen=True)
class DrawnRow:
    """One row about to sample. allowed: what structured output lets through, if it says anything."""

    sampling: Sampling
    prompt: Sequence[int] = (1,)
    outputs: Sequence[int] = ()
    seed: int = 0
    allowed: Sequence[int] | None = field(default=None)

    def op(self, slot: int = 1) -> SlotInit:
        known = columns.pack([*self.prompt, *self.outputs]) if self.sampling.needs_history else b""
        return SlotInit(slot, slot, self.sampling, self.seed, len(self.prompt), known)

    @property
    def tokens(self) -> I64:
        return np.array([*self.prompt, *self.outputs], np.int64)


def biased(values: dict[int, float], **others: Any) -> Sampling:
    """Greedy unless told otherwise."""
    ids, numbers = columns.pack(values), columns.pack_floats(values.values())
    return Sampling(**{"temperature": 0.0, **others}, bias_token_ids=ids, bias_values=numbers)


def masks_of(allowed: Mapping[int, Sequence[int]], vocab_size: int) -> TokenMasks:
    bits = np.zeros((len(allowed), num_words(vocab_size)), np.uint32)
    for index, token_ids in enumerate(allowed.values()):
        for token in token_ids:
            bits[index, token // 32] |= np.uint32(1 << token % 32)
    return TokenMasks(np.array(list(allowed), np.int64), bits.view(np.int32))


def draw(logits: Tensor, rows: Sequence[DrawnRow]) -> Sampled:
    """The product's sampler over all rows at once; the logits are edited."""
    state = SamplingState(len(rows) + 1, 1000)
    for slot, row in enumerate(rows, 1):
        state.init(row.op(slot))
    slots = np.arange(1, len(rows) + 1, dtype=np.int32)
    kv_lens = np.array([len(row.tokens) for row in rows], np.int32)
    allowed = {index: row.allowed for index, row in enumerate(rows) if row.allowed is not None}
    masks = masks_of(allowed, logits.shape[1]) if allowed else None
    return sample(logits.numpy(), state.rows(slots, kv_lens), masks)


def scores_by_definition(logits: F32, row: DrawnRow) -> F64:
    allowed: Mask | None = None
    if row.allowed is not None:
        allowed = np.isin(np.arange(len(logits)), row.allowed)
    return reference.edited(row.op(), row.tokens, np.arange(len(logits)), logits.astype(np.float64), allowed)


def by_definition(logits: F32, row: DrawnRow) -> int | None:
    """The token of one row; None when it is stuck."""
    scores = scores_by_definition(logits, row)
    return reference.draw(row.op(), len(row.tokens), np.arange(len(logits)), scores)


def random_row(rng: random.Random, vocab_size: int) -> DrawnRow:
    """A row that asks for each thing with some likelihood."""

    def ids(count: int) -> list[int]:
        return rng.sample(range(vocab_size), count)

    def maybe(share: float) -> bool:
        return rng.random() < share

    biases = {token: rng.uniform(-5, 5) for token in ids(rng.randint(1, 8))} if maybe(0.3) else {}
    outputs = [rng.choice(ids(6)) for _ in range(rng.randint(0, 30))]
    words = [columns.pack(rng.choices([*outputs[-2:], *ids(3)], k=rng.randint(1, 4))) for _ in range(rng.randint(0, 4))]
    sampling = Sampling(
        temperature=rng.choice([0.0, 1e-6, 0.3, 0.7, 1.0, 1.0, 1.7, 10.0]),
        top_k=rng.choice([0, 0, 1, 2, 5, 40, vocab_size - 1, vocab_size + 5]),
        top_p=rng.choice([1.0, 1.0, 1e-4, 0.1, 0.5, 0.9, 0.95, 0.999]),
        min_p=rng.choice([0.0, 0.0, 0.0, 0.01, 0.1, 0.5, 1.0]),
        repetition_penalty=rng.choice([1.0, 1.0, 0.7, 1.1, 2.0]),
        presence_penalty=rng.choice([0.0, 0.0, -1.5, 0.4, 2.0]),
        frequency_penalty=rng.choice([0.0, 0.0, -0.5, 0.1, 1.0]),
        bias_token_ids=columns.pack(biases),
        bias_values=columns.pack_floats(biases.values()),
        allowed_token_ids=columns.pack(ids(rng.choice([1, 3, 20]))) if maybe(0.2) else b"",
        bad_words=tuple(words) if maybe(0.3) else (),
        min_tokens=rng.choice([0, 0, 5, 100]),
        stop_token_ids=columns.pack(ids(3)) if maybe(0.5) else b"",
    )
    prompt = rng.choices(range(vocab_size), k=rng.randint(1, 30))
    allowed = ids(rng.choice([1, 5, vocab_size // 2])) if maybe(0.15) else None
    return DrawnRow(sampling, prompt, outputs, rng.getrandbits(64), allowed)


def random_logits(num_rows: int, vocab_size: int, seed: int) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 4
