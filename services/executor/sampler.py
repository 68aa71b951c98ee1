"""From logits to tokens: one pass over all sampling rows of a step, float32, rows with nothing special pay nothing.

Greedy rows take the best token. The others draw from softmax(logits / temperature), cut down by top_k, then top_p on
what top_k left, then min_p, by inverting the cumulative distribution in the order of token ids at a counter-based
uniform number (draws.py): a row's draw depends on its own logits, seed and output index alone. The running sum is
float64, for in float32 no token rarer than 6e-8 could be drawn late in the vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.executor.batch import I64, Mask
from services.executor.draws import uniforms
from services.executor.masks import TokenMasks
from services.executor.sampling_state import SamplingRows
from services.executor.truncation import truncate

# Below it every gap between two logits is beyond float32's range; it keeps gap / temperature finite.
_MIN_TEMPERATURE = 1e-30
# Rows drawn at once, which bounds the memory of the running sums.
_ROWS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Sampled:
    """tokens: [rows] int64. stuck: [rows] whether nothing was left to draw; such a row's token means nothing."""

    tokens: Tensor
    stuck: Mask


def sample(logits: Tensor, rows: SamplingRows, masks: TokenMasks | None = None) -> Sampled:
    """logits [rows, vocab], finite -> one token a row. The logits are left as they are."""
    scores = _mask(logits, rows, masks)
    stuck: Mask = np.zeros(len(scores), np.bool_)
    if masks is not None:
        stuck[masks.rows] = (scores[torch.from_numpy(masks.rows)].amax(-1) == float("-inf")).numpy()
        scores[torch.from_numpy(stuck)] = 0.0
    return Sampled(_choose(scores, rows), stuck)


def _choose(scores: Tensor, rows: SamplingRows) -> Tensor:
    drawn = np.flatnonzero(rows.temperature > 0)
    if len(drawn) == 0:
        return scores.argmax(-1)
    tokens = scores.argmax(-1) if len(drawn) < len(scores) else torch.empty(len(scores), dtype=torch.int64)
    for start in range(0, len(drawn), _ROWS_AT_ONCE):
        chosen = drawn[start : start + _ROWS_AT_ONCE]
        index = torch.from_numpy(chosen)
        tokens.index_copy_(0, index, _draw(scores.index_select(0, index), rows, chosen))
    return tokens


def _mask(logits: Tensor, rows: SamplingRows, masks: TokenMasks | None) -> Tensor:
    """What may not be drawn becomes minus infinity, in a copy. Penalties and biases belong here too."""
    if not rows.masked and masks is None:
        return logits
    scores = logits.clone()
    if masks is not None:
        scores[torch.from_numpy(masks.rows)] = scores[torch.from_numpy(masks.rows)].masked_fill_(
            ~torch.from_numpy(masks.allowed(scores.shape[1])), float("-inf")
        )
    for row, token_ids in rows.masked.items():
        scores[row].index_fill_(0, torch.from_numpy(token_ids), float("-inf"))
    return scores


def _draw(scores: Tensor, rows: SamplingRows, chosen: I64) -> Tensor:
    """One token for each of scores [chosen, vocab]."""
    inverse = 1.0 / np.maximum(rows.temperature[chosen], np.float32(_MIN_TEMPERATURE))
    # The best score becomes exactly 0, whatever the temperature; nothing can overflow upwards.
    scaled = (scores - scores.amax(-1, keepdim=True)) * torch.from_numpy(inverse)[:, None]
    truncate(scaled, rows.top_k[chosen], rows.top_p[chosen], rows.min_p[chosen])
    cumulative = scaled.exp_().cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    target = total * torch.from_numpy(uniforms(rows.seeds[chosen], rows.outputs[chosen]))[:, None]
    # The first token whose sum exceeds the target has a probability of its own; rounding must not pass the last.
    return torch.searchsorted(cumulative, target.minimum(total * (1 - 2.0**-52)), right=True).squeeze(1)
