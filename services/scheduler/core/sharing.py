"""Sharing: what a sequence that joins need not compute, because the KV of its first tokens is there.

The prefix cache knows some of it. The samples of one request share more: a sample forks from another that runs and has
confirmed all positions of the prompt but the last. It shares the full blocks, takes a copy of what is left over (the
tail) in a block of its own, and computes the last position itself, with its own seed. Who may fork from whom is read
from the state and stored nowhere: a sample is passed over while another one is computing the prompt, forks from any
that has it, and is an ordinary sequence when none runs. Knows no order of service and no room.
"""

from typing import NamedTuple

from services.scheduler.core.sequence import Run, Sequence
from services.scheduler.core.state import State


class Head(NamedTuple):
    """KV that is there: so many positions, in whole blocks to share and, at a fork, in the tail of `parent`."""

    blocks: list[int]
    num_positions: int
    parent: Run | None = None

    @property
    def tail(self) -> int:
        """The block that holds the positions beyond the shared blocks, at a fork that leaves any over."""
        assert self.parent is not None
        return self.parent.blocks[len(self.blocks)]


NOTHING = Head([], 0)


def find_head(state: State, sequence: Sequence) -> Head | None:
    """The longest head that there is; None while one is being computed that the sequence should wait for."""
    if sequence.swapped is not None:
        return NOTHING  # its KV comes back from the host
    parent = _parent_of(sequence)
    if parent is not None and not _has_prompt(parent):
        return None
    found = state.cache.match(sequence)
    size = state.pool.block_size
    head = Head(found, len(found) * size) if found else NOTHING
    if parent is not None and sequence.num_prompt_tokens > head.num_positions:
        num_positions = sequence.num_prompt_tokens - 1
        head = Head(parent.blocks[: num_positions // size], num_positions, parent)
    return None if state.cache.is_expected(sequence, len(head.blocks)) else head


def _parent_of(sequence: Sequence) -> Run | None:
    """The first sample of the same request that runs, one that has the prompt before one that has not; None where
    there is nothing to share."""
    samples = sequence.request.sequences
    if len(samples) == 1 or sequence.num_prompt_tokens == 1:
        return None
    if not sequence.is_scored:
        return None  # logprobs of the prompt need every position computed
    runs = [sample.run for sample in samples if sample.run is not None]
    return next(filter(_has_prompt, runs), runs[0] if runs else None)


def _has_prompt(run: Run) -> bool:
    """Whether the run's blocks hold what a fork shares, in every step planned from now on."""
    return run.copy is None and run.confirmed >= run.sequence.num_prompt_tokens - 1
