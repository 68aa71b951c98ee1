"""Log-softmax of raw logits, reported for the rows that ask: the chosen token first, then the top k without it.

Values do not depend on temperature, truncation or masks. The rank of a token is one more than the number of tokens
that are strictly likelier, so equal ones share a rank.
"""

from dataclasses import dataclass

import numpy as np

from services.executor.batch import F32, I32, I64
from services.executor.selection import NO_TOKEN, Ranking
from services.wire.messages import Logprobs


@dataclass(frozen=True, slots=True)
class Report:
    """Candidates of some rows, in columns; see messages.Logprobs."""

    rows: I32
    counts: I32
    token_ids: I32
    ranks: I32
    values: F32


def report(logits: F32, chosen: I64, rows: I64, wanted: I32) -> Report:
    """logits [n, vocab], chosen [n]; rows: what each of the n is called; wanted: k of each, at least 0."""
    most = min(int(wanted.max()), logits.shape[1])
    normalizer = np.array([[_log_of_sum(row)] for row in logits])
    own = np.take_along_axis(logits, chosen[:, None], axis=1)
    own_rank = 1 + (logits > own).sum(-1, keepdims=True)
    best, best_ids = Ranking(logits).top(np.arange(len(logits)), np.full(len(logits), most, np.int64))
    best_ranks = 1 + (best[:, None, :] > best[:, :, None]).sum(-1)
    token_ids = np.concatenate((chosen[:, None], best_ids), axis=1)
    ranks = np.concatenate((own_rank, best_ranks), axis=1)
    values = np.concatenate((own, best), axis=1) - normalizer
    is_listed = (np.arange(most + 1) <= wanted[:, None]) & (token_ids != NO_TOKEN)
    is_listed[:, 1:] &= token_ids[:, 1:] != token_ids[:, :1]
    return Report(
        rows=rows.astype(np.int32),
        counts=is_listed.sum(1).astype(np.int32),
        token_ids=token_ids[is_listed].astype(np.int32),
        ranks=ranks[is_listed].astype(np.int32),
        values=values[is_listed],
    )


def _log_of_sum(row: F32) -> np.float32:
    """The logarithm of the sum of e^x."""
    best = row.max()
    total: np.float32 = best + np.log(np.exp(row - best).sum())
    return total


def join(reports: list[Report]) -> Logprobs | None:
    """One message of all reports, in their order; None when there is nothing to report."""
    if not reports:
        return None
    return Logprobs(
        rows=np.concatenate([report.rows for report in reports]).tobytes(),
        counts=np.concatenate([report.counts for report in reports]).tobytes(),
        token_ids=np.concatenate([report.token_ids for report in reports]).tobytes(),
        ranks=np.concatenate([report.ranks for report in reports]).tobytes(),
        values=np.concatenate([report.values for report in reports]).tobytes(),
    )
