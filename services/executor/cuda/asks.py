"""What the sampling rows of a step ask of the device, in arrays; and which of them the host samples.

A row is the host's where its scores are edited (penalties, biases, bans) or a structured output masks them: what that
takes lies there. Which road a row takes depends on what it asks for itself, never on its neighbours, so they change
none of its tokens.
"""

from dataclasses import dataclass

import numpy as np

from services.executor.batch import F32, I64
from services.executor.draws import draw_bits
from services.executor.sampling_state import SamplingRows

LEAST_TEMPERATURE = 1e-20  # below it no gap between two logits is bridged by noise, and quotients stay finite
TOP_P_OFF = 2.0


@dataclass(frozen=True, slots=True)
class Asks:
    """Indices are of the sampling rows. bits, temperatures: one entry for each; 0 is greedy."""

    bits: I64
    temperatures: F32
    cut_rows: I64
    limits: F32  # [cut rows, 4]: temperature, top_k, top_p, min_p; see gumbel.cut
    host_rows: I64


def asks_of(rows: SamplingRows, masked: I64, vocab_size: int) -> Asks:
    """masked: the rows that structured output masks."""
    edited = rows.edits.rows if rows.edits is not None else np.zeros(0, np.int64)
    host_rows = np.union1d(edited, masked)
    is_cut = rows.are_cut(vocab_size)
    is_cut[host_rows] = False
    temperatures = np.where(rows.temperature > 0, np.maximum(rows.temperature, LEAST_TEMPERATURE), 0).astype(np.float32)
    temperatures[host_rows] = 0
    cut_rows = np.flatnonzero(is_cut)
    limits = np.stack(
        (
            temperatures[cut_rows],
            np.where(rows.top_k[cut_rows] > 0, rows.top_k[cut_rows], vocab_size),
            np.where(rows.top_p[cut_rows] < 1, rows.top_p[cut_rows], TOP_P_OFF),
            rows.min_p[cut_rows],
        ),
        axis=1,
    ).astype(np.float32)
    bits = draw_bits(rows.seeds, rows.outputs).view(np.int64)
    return Asks(bits, temperatures, cut_rows, limits, host_rows)
