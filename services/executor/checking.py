"""A model tried without being served: its tensors, its tokenizer, its chat template, and one forward pass.

Each finding is a value, not an exception: what can still be tried after a failure is tried.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from msgspec import Struct

from services.executor.batch import Rows, pack
from services.executor.capacity import Capacity
from services.executor.checkpoint import Checkpoint, open_checkpoint
from services.executor.inputs import StepInputs
from services.executor.operations import ReferenceOperations
from services.executor.torch_arrays import open_kv, plain_blocks
from services.executor.weights import load_llama
from services.model_file import ModelFileError
from services.tokenizer import TextError, Tokenizer, TokenizerFileError, load
from services.wire.messages import ModelCard, RowFlag

TEXT = "The capital of France is"
CONVERSATION = [{"role": "user", "content": TEXT}]
BLOCK_SIZE = 16


class Finding(Struct, frozen=True):
    """One thing that was tried; detail: what was found, or what is wrong."""

    what: str
    is_good: bool
    detail: str


def check(path: Path) -> Iterator[Finding]:
    """Findings as they come."""
    checkpoint, tokenizer = None, None
    try:
        checkpoint = open_checkpoint(path)
        yield Finding("tensors", True, f"{len(checkpoint.tensors)} tensors, every one in its place")
    except ModelFileError as error:
        yield Finding("tensors", False, str(error))
    try:
        tokenizer = load(path)
        yield _ids_agree(tokenizer, checkpoint)
        yield _template(tokenizer)
    except TokenizerFileError as error:
        yield Finding("tokenizer", False, str(error))
    if checkpoint is not None:
        yield _forward(checkpoint, tokenizer)


def _ids_agree(tokenizer: Tokenizer, checkpoint: Checkpoint | None) -> Finding:
    ends = ", ".join(f"{i} {tokenizer.token_bytes(i).decode(errors='replace')!r}" for i in tokenizer.eos_token_ids)
    if not tokenizer.eos_token_ids:
        return Finding("tokenizer", False, "no token ends a text")
    if checkpoint is not None and checkpoint.config.eos_token_ids != tokenizer.eos_token_ids:
        theirs = checkpoint.config.eos_token_ids
        return Finding("tokenizer", False, f"texts end with {tokenizer.eos_token_ids} here and {theirs} in the weights")
    return Finding("tokenizer", True, f"{tokenizer.vocab_size} tokens, texts end with {ends}")


def _template(tokenizer: Tokenizer) -> Finding:
    if tokenizer.chat_template is None:
        return Finding("chat template", True, "none: conversations are refused")
    try:
        token_ids = tokenizer.encode_chat(CONVERSATION)
    except TextError as error:
        return Finding("chat template", False, str(error))
    return Finding("chat template", True, f"a message of 5 words becomes {len(token_ids)} tokens")


def _forward(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> Finding:
    """In float32 and plain torch, whatever will serve it."""
    token_ids = (tokenizer.encode_prompt(TEXT) if tokenizer else [])[:BLOCK_SIZE] or [0]
    logits = _logits(checkpoint, token_ids)
    if not bool(torch.isfinite(logits).all()):
        return Finding("forward pass", False, "logits are not finite")
    best = int(logits[-1].argmax())
    text = tokenizer.decode([best], skip_special_tokens=False) if tokenizer else ""
    return Finding("forward pass", True, f"{len(token_ids)} tokens, all finite; {TEXT!r} goes on with {text!r}")


@torch.inference_mode()
def _logits(checkpoint: Checkpoint, token_ids: list[int]) -> torch.Tensor:
    config, one = checkpoint.config, np.ones(1, np.int32)
    card = ModelCard(name="", vocab_size=config.vocab_size, context_length=BLOCK_SIZE, eos_token_ids=())
    blocks = plain_blocks(BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    kv = open_kv(Capacity(2, BLOCK_SIZE, 1, card), config.num_layers, blocks)
    model = load_llama(checkpoint, ReferenceOperations())
    rows = Rows(one, one, 0 * one, one * len(token_ids), one * int(RowFlag.SAMPLE), np.array(token_ids, np.int32))
    batch = pack(rows, np.ones((2, 1), np.int32), BLOCK_SIZE, step=1, received_ns=0)
    plan = model.prepare(batch.cu_seqlens_q, batch.kv_lens, batch.block_tables, BLOCK_SIZE)
    ids, positions, cells = map(torch.from_numpy, (batch.token_ids, batch.position_ids, batch.slot_mapping))
    return model.logits(model.forward(StepInputs(ids, positions, cells, plan), kv))
