"""Log-probabilities on their way through: from rows of a step to deltas of a batch, and which of a prompt are new.

A prompt's come chunk by chunk, and a chunk that is computed again reports its own again: each prompt token is told
once, in order. Knows the layout of a Logprobs message; knows nothing of what the numbers mean. Invariant: what is told
of a prompt is always the next token that was not (Sequence.num_scored).
"""

from array import array
from collections import Counter

from services.scheduler.core.sequence import Run
from services.scheduler.core.step import StepRecord
from services.wire import columns
from services.wire.messages import Logprobs


def of_outputs(logprobs: Logprobs, rows: list[Run], delivered: list[Run]) -> Logprobs | None:
    """Those of the tokens delivered; those of dropped rows vanish."""
    index_of = {run: index for index, run in enumerate(delivered)}
    return _onto(logprobs, [index_of.get(rows[row]) for row in columns.unpack(logprobs.rows)])


def of_prompts(logprobs: Logprobs, record: StepRecord, delivered: list[Run]) -> tuple[Logprobs | None, list[Run]]:
    """Those of prompt tokens not told before, and the rows that have no token in this batch but these."""
    index_of = {run: index for index, run in enumerate(delivered)}
    silent: list[Run] = []
    named = columns.unpack(logprobs.rows)
    num_left = Counter(named)  # entries to come of each row; its last is of the last prompt token that it has
    first_added = len(record.rows) - len(record.added)
    deltas: list[int | None] = []
    for row in named:
        run = record.rows[row]
        sequence = run.sequence
        position = min(record.ends[row - first_added], sequence.num_prompt_tokens) - num_left[row]
        num_left[row] -= 1
        if sequence.finish is not None or position < sequence.num_scored:
            deltas.append(None)
            continue
        assert position == sequence.num_scored, f"prompt token {position} scored where {sequence.num_scored} was due"
        sequence.num_scored += 1
        if run not in index_of:
            index_of[run] = len(delivered) + len(silent)
            silent.append(run)
        deltas.append(index_of[run])
    return _onto(logprobs, deltas), silent


def _onto(logprobs: Logprobs, deltas: list[int | None]) -> Logprobs | None:
    """Each entry under its delta; those without one are left out."""
    kept, counts = array("i"), array("i")
    token_ids, ranks, values = array("i"), array("i"), array("f")
    all_ids, all_ranks = columns.unpack(logprobs.token_ids), columns.unpack(logprobs.ranks)
    all_values = columns.unpack_floats(logprobs.values)
    start = 0
    for delta, count in zip(deltas, columns.unpack(logprobs.counts), strict=True):
        if delta is not None:
            kept.append(delta)
            counts.append(count)
            token_ids.extend(all_ids[start : start + count])
            ranks.extend(all_ranks[start : start + count])
            values.extend(all_values[start : start + count])
        start += count
    if not kept:
        return None
    return Logprobs(*(column.tobytes() for column in (kept, counts, token_ids, ranks, values)))
