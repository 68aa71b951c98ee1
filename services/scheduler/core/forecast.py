"""Looking ahead: whether the pool will hold everybody who runs, and one more, until they end.

Block usage is simulated into the future (after tokasaurus, manager/scheduler.py) with learned output lengths instead
of a bare watermark: each running sequence grows by a token a step until its likely end and then gives its blocks back.
After a preemption the likely length is taken longer for a while, so that the same mistake is not made at once again.
"""

from services.scheduler.core.sequence import Run, Sequence
from services.scheduler.core.state import State

SPREADS = 0.25  # standard deviations added to the mean output length
SPREADS_AFTER_PREEMPTION = 2.0
CAUTIOUS_STEPS = 64
RESIDUE = 0.2  # of the likely length: what is left, at the least, of an output that goes on


def has_future(state: State, sequence: Sequence, num_found: int) -> bool:
    """Whether admitting this sequence is likely to need no preemption. Alone, anybody may try."""
    if not state.limits.forecast or not state.running:
        return True
    is_cautious = state.last_step - state.last_preemption_step < CAUTIOUS_STEPS and state.last_preemption_step > 0
    lengths = state.output_length
    likely = lengths.likely(SPREADS_AFTER_PREEMPTION if is_cautious else SPREADS) if lengths.is_known else 0.0
    pool, size = state.pool, state.pool.block_size
    num_to_come = len(sequence.tokens) + sum([run.num_wanted for run in state.claims])  # known, and not in KV yet
    if pool.num_free * size >= (len(state.running) + 1) * (likely + size) + num_to_come:
        return True  # even if nobody ended before its likely end
    # (steps to the end, positions held now by nobody before it) of everybody, the longest-lived first.
    lives = [(_steps_left(sequence, likely), len(sequence.tokens) - num_found * size)]
    lives += [(_steps_left(run.sequence, likely), _length(run) - run.num_cached_blocks * size) for run in state.running]
    lives.sort(reverse=True)
    # Of what is shared and was computed by somebody who is gone, nobody knows when it will be given back.
    num_own_blocks = sum([len(run.blocks) - run.num_cached_blocks for run in state.running])
    num_positions = state.pool.num_held_positions - num_own_blocks * size
    for num_alive, (steps_left, positions) in enumerate(lives, 1):
        num_positions += positions
        # Usage just before this one ends: everybody still alive has grown as long, and half a block each is unused.
        usage = (num_positions + num_alive * steps_left) / pool.block_size + num_alive / 2
        if usage > pool.num_total:
            return False
    return True


def _length(run: Run) -> int:
    """KV positions that it is sure to hold: the rest of its prompt is known, though not computed."""
    return max(run.planned, len(run.tokens))


def _steps_left(sequence: Sequence, likely: float) -> int:
    """An output longer than most is no nearer to its end than others: lengths have long tails."""
    num_left = max(likely - sequence.num_output_tokens, RESIDUE * likely, 1)
    return min(sequence.limit - len(sequence.tokens), int(num_left))
