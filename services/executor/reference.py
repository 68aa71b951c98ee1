"""The definition of a draw, one row at a time in float64: what the batched sampler is held against.

The simulated backend draws with it as well, from a vocabulary of few tokens. Plain and slow on purpose, without torch.
The order: penalties, biases, everything that may not be drawn; then temperature, top_k, top_p, min_p, and the draw.
ids: [m] tokens that exist, rising; scores: [m] of each.
"""

import numpy as np

from services.executor.batch import F64, I64, Mask
from services.executor.draws import MASK_64, MIN_TEMPERATURE, uniforms
from services.executor.slots import read_column
from services.wire import columns
from services.wire.messages import SlotInit

_LARGEST = float(np.finfo(np.float32).max)


def edited(op: SlotInit, tokens: I64, ids: I64, logits: F64, allowed: Mask | None = None) -> F64:
    """The scores to draw the next token with. tokens: prompt and outputs so far; allowed: [m] by structured output."""
    asks = op.sampling
    scores: F64 = logits.astype(np.float64)
    penalty = np.where(np.isin(ids, tokens), asks.repetition_penalty, 1.0)
    scores = np.where(scores > 0, scores / penalty, scores * penalty)
    counts = (tokens[op.num_prompt_tokens :, None] == ids).sum(axis=0)
    scores = scores - counts * asks.frequency_penalty - (counts > 0) * asks.presence_penalty
    scores = np.clip(scores, -_LARGEST, _LARGEST)
    for token, bias in zip(read_column(asks.bias_token_ids), np.frombuffer(asks.bias_values, "<f4"), strict=True):
        scores[ids == token] = np.clip(scores[ids == token] + float(bias), -_LARGEST, _LARGEST)
    scores[np.isin(ids, _banned(op, tokens))] = -np.inf
    if asks.allowed_token_ids:
        scores[~np.isin(ids, read_column(asks.allowed_token_ids))] = -np.inf
    if allowed is not None:
        scores[~allowed] = -np.inf
    return scores


def _banned(op: SlotInit, tokens: I64) -> list[int]:
    banned: list[int] = []
    if len(tokens) - op.num_prompt_tokens < op.sampling.min_tokens:
        banned.extend(read_column(op.sampling.stop_token_ids).tolist())
    said = columns.pack(tokens.tolist())
    for word in op.sampling.bad_words:
        if said.endswith(word[:-4]):
            banned.extend(read_column(word[-4:]).tolist())
    return banned


def kept(op: SlotInit, scores: F64) -> tuple[I64, F64]:
    """Indices of the tokens that may be drawn, likeliest first, and exp((score - best) / temperature) of each."""
    asks = op.sampling
    order = np.argsort(-scores, kind="stable")
    order = order[np.isfinite(scores[order])]
    if asks.top_k:
        order = order[: asks.top_k]
    weights = np.exp((scores[order] - scores[order[:1]]) / max(asks.temperature, MIN_TEMPERATURE))
    before = np.cumsum(weights) - weights
    passes = weights >= asks.min_p
    if asks.top_p < 1:
        passes &= before < asks.top_p * weights.sum()
    passes[:1] = True
    return order[passes], weights[passes]


def draw(op: SlotInit, num_tokens: int, ids: I64, scores: F64) -> int | None:
    """The token at position num_tokens; None when every token is banned."""
    indices, weights = kept(op, scores)
    if not len(indices):
        return None
    if op.sampling.temperature == 0:
        return int(ids[indices[0]])
    by_id = np.argsort(indices)
    sums = np.cumsum(weights[by_id])
    seed = np.array([op.seed & MASK_64], np.uint64)
    [number] = uniforms(seed, np.array([num_tokens - op.num_prompt_tokens]))
    place = min(int((sums <= number * sums[-1]).sum()), int((sums < sums[-1]).sum()))
    return int(ids[indices[by_id[place]]])
