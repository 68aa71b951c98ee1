"""The inputs of one step as arrays that travel in one copy: which there are, and how a batch fills them.

`forward_fields` come first and depend on the numbers of tokens and rows alone: a captured step finds them where it
found them when it was captured. A padding row is the dummies' own: it reads the last token of slot 0, writes cell 0 of
block 0, and attends to that one position.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.executor.batch import StepBatch
from services.executor.cuda.asks import Asks
from services.executor.cuda.layout import Field, Layout
from services.executor.cuda.plan import running_sums, tiles_of

# Rows of block tables begin at multiples of this many entries: Triton compiles a kernel anew for strides that do not.
TABLE_ALIGNMENT = 16
HOST_TOKEN = -1  # in `sources`: the token is the one in token_ids, not the last one of a slot

Arrays = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Staged:
    """A step ready to be laid out. num_rows, num_tokens: padding included."""

    layout: Layout
    batch: StepBatch
    asks: Asks | None  # None where nothing samples
    num_rows: int
    num_tokens: int


def forward_fields(num_tokens: int, num_rows: int) -> list[Field]:
    """What the forward pass of a decode step reads. T tokens, R rows."""
    return [
        Field("token_ids", np.int32, (num_tokens,)),
        Field("sources", np.int32, (num_tokens,)),  # the slot whose last token is the input, or HOST_TOKEN
        Field("positions", np.int32, (num_tokens,)),
        Field("cells", np.int32, (num_tokens,)),
        Field("kv_lens", np.int32, (num_rows,)),
        Field("cu_seqlens_k", np.int32, (num_rows + 1,)),
    ]


def other_fields(num_rows: int, width: int, sampling: tuple[int, int]) -> list[Field]:
    """What comes behind those. width: blocks of the longest row; sampling: rows that do, and those of them cut down."""
    num_sampling, num_cut = sampling
    return [
        Field("table", np.int32, (num_rows, width)),
        Field("slots", np.int64, (num_sampling,)),
        Field("last", np.int32, (num_sampling,)),  # where the last token of each sampling row lies in T
        Field("bits", np.int64, (num_sampling,)),
        Field("temperatures", np.float32, (num_sampling,)),
        Field("cut_rows", np.int64, (num_cut,)),
        Field("limits", np.float32, (num_cut, 4)),
    ]


def table_width(num_blocks: int) -> int:
    """Entries of a row of a block table that holds so many blocks."""
    return -(-max(num_blocks, 1) // TABLE_ALIGNMENT) * TABLE_ALIGNMENT


def stage(batch: StepBatch, asks: Asks | None, bucket: int | None) -> Staged:
    """bucket: rows of a captured step, or None."""
    num_rows, num_tokens = bucket or batch.num_rows, bucket or batch.num_tokens
    num_cut = len(asks.cut_rows) if asks is not None else 0
    width = table_width(batch.block_tables.shape[1])
    fields = [
        *forward_fields(num_tokens, num_rows),
        *other_fields(num_rows, width, (len(batch.sampling_rows), num_cut)),
    ]
    if bucket is None:
        fields += [
            Field("cu_seqlens_q", np.int32, (num_rows + 1,)),
            Field("decode_rows", np.int32, (int((batch.counts == 1).sum()),)),
            Field("tiles", np.int32, tiles_of(batch.counts).shape),
        ]
    return Staged(Layout(fields), batch, asks, num_rows, num_tokens)


def fill(arrays: Arrays, staged: Staged) -> None:
    """Write a step's arrays, every element of them."""
    batch, asks = staged.batch, staged.asks
    real, own = slice(batch.num_tokens), slice(batch.num_rows)
    padding = {"token_ids": 0, "sources": 0, "positions": 0, "cells": 0, "kv_lens": 1, "table": 0}
    for name, value in padding.items():
        arrays[name].fill(value)
    arrays["token_ids"][real] = batch.token_ids
    arrays["sources"][real] = HOST_TOKEN
    arrays["sources"][batch.cu_seqlens_q[batch.future_rows]] = batch.slots[batch.future_rows]
    arrays["positions"][real] = batch.position_ids
    arrays["cells"][real] = batch.slot_mapping
    arrays["kv_lens"][own] = batch.kv_lens
    arrays["cu_seqlens_k"][:] = running_sums(arrays["kv_lens"].astype(np.int32))
    if batch.block_tables.size:
        arrays["table"][own, : batch.block_tables.shape[1]] = batch.block_tables
    arrays["slots"][:] = batch.slots[batch.sampling_rows]
    arrays["last"][:] = batch.last_tokens[batch.sampling_rows]
    if asks is not None:
        for name in ("bits", "temperatures", "cut_rows", "limits"):
            arrays[name][:] = getattr(asks, name)
    if "tiles" in arrays:
        arrays["cu_seqlens_q"][:] = batch.cu_seqlens_q
        arrays["decode_rows"][:] = np.flatnonzero(batch.counts == 1)
        arrays["tiles"][:] = tiles_of(batch.counts)
