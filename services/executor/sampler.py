"""From logits to tokens: one pass over all sampling rows of a step; rows with nothing special pay nothing.

Scores are edited (edits.py), then greedy rows take the best token. The others draw from softmax(scores / temperature),
cut down by top_k, top_p and min_p (truncation.py), by inverting the cumulative distribution in the order of token ids
at a counter-based uniform number (draws.py): a draw depends on the row's own scores, seed and output index alone.
reference.py states the same in float64, one row at a time.
"""

from dataclasses import dataclass

import numpy as np

from services.executor.batch import F32, F64, I64, Mask
from services.executor.draws import MIN_TEMPERATURE, uniforms
from services.executor.edits import edit
from services.executor.masks import TokenMasks
from services.executor.sampling_state import SamplingRows
from services.executor.scores import PLAIN, ScoreOperations
from services.executor.selection import Ranking
from services.executor.truncation import Kept, Limits, truncate
from services.executor.weighing import Weigher, first_above


@dataclass(frozen=True, slots=True)
class Sampled:
    """tokens: [rows] int64. stuck: [rows] whether nothing was left to draw; such a row's token means nothing."""

    tokens: I64
    stuck: Mask


def sample(
    logits: F32, rows: SamplingRows, masks: TokenMasks | None = None, operations: ScoreOperations = PLAIN
) -> Sampled:
    """logits [rows, vocab], float32, finite and contiguous -> one token a row. The logits are edited in place."""
    edit(logits, rows.edits, masks, operations)
    ranking = Ranking(logits, operations)
    stuck: Mask = np.isneginf(ranking.best_scores)
    is_drawn = (rows.temperature > 0) & ~stuck
    is_cut = is_drawn & rows.are_cut(ranking.vocab_size)
    tokens = np.zeros(len(stuck), np.int64) if is_drawn.all() else ranking.best()
    temperature = np.maximum(rows.temperature, MIN_TEMPERATURE)
    numbers = uniforms(rows.seeds, rows.outputs)
    whole, cut = np.flatnonzero(is_drawn & ~is_cut), np.flatnonzero(is_cut)
    if len(whole):
        tokens[whole] = Weigher(ranking).draw(whole, temperature[whole], numbers[whole])
    if len(cut):
        limits = Limits(cut, temperature[cut], rows.top_k[cut].astype(np.int64), rows.top_p[cut], rows.min_p[cut])
        for kept in truncate(ranking, limits):
            tokens[kept.rows] = _draw(kept, numbers[kept.rows])
    return Sampled(tokens, stuck)


def _draw(kept: Kept, numbers: F64) -> I64:
    """One token for each row."""
    order = np.argsort(np.where(kept.weights > 0, kept.ids, np.iinfo(np.int64).max), axis=1)
    ids = np.take_along_axis(kept.ids, order, axis=1)
    sums: F64 = np.cumsum(np.take_along_axis(kept.weights, order, axis=1), axis=1)
    chosen: I64 = ids[np.arange(len(ids)), first_above(sums, numbers * sums[:, -1])]
    return chosen
