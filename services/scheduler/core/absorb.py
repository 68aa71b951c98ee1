"""Taking in one step's result: tokens become known, sequences end, everything else is told.

One pass over the sampled rows. A row names a Run: a live one gets its position confirmed; an ended one whose sequence
goes on (preempted meanwhile) still delivers its token, which is valid; one whose sequence has ended is dropped, here
and nowhere else.
"""

from array import array

from services.scheduler.core import scores
from services.scheduler.core.sequence import Run, Sequence
from services.scheduler.core.state import LENGTH, STOP, State
from services.scheduler.core.step import StepRecord
from services.scheduler.core.swap import absorb_copies
from services.wire import columns
from services.wire.messages import FailedRow, FailureReason, FinishReason, StepResult


def absorb_step(state: State, result: StepResult, now: int) -> None:
    """Take in a good result of the oldest unacknowledged step."""
    record = state.inflight.popleft()
    assert record.step == result.step, f"result of step {result.step} where {record.step} was due"
    if state.copies:
        absorb_copies(state, record, result)
    state.copy_time.t_step_done = result.t_done
    if record.rows:  # a step without rows takes as long as the copy it waits for
        state.finished_steps.append((record.size, result.t_done - result.t_launched))
    tokens = columns.unpack(result.tokens)
    rows = record.rows
    runs = record.samplers(frozenset([failure.row for failure in result.failed_rows]))
    assert len(tokens) == len(runs), f"step {result.step}: {len(tokens)} tokens for {len(runs)} sampled rows"
    for (run, count), samples in zip(record.added, record.samples, strict=True):
        run.settled += count
        run.has_told |= samples
    for run, count in record.copied:
        run.settled += count
    ended, num_wasted = _take_tokens(runs, tokens)
    delivered = runs
    if num_wasted:
        delivered = [run for run in runs if run.sequence.finish is None]
        tokens = array("i", [t for run, t in zip(runs, tokens, strict=True) if run.sequence.finish is None])
    if record.added:
        _note_first_tokens(state, delivered[-len(record.added) :], now)
    state.counters.num_output_tokens += len(delivered)
    state.counters.num_wasted_rows += num_wasted
    logprobs = result.logprobs and scores.of_outputs(result.logprobs, rows, delivered)
    prompts, silent = None, list[Run]()
    if result.prompt_logprobs is not None:
        prompts, silent = scores.of_prompts(result.prompt_logprobs, record, delivered)
    state.outbox.deliver(delivered, tokens, logprobs, prompts, silent)
    _clear_blame(state, runs)
    _publish_chunks(state, record)
    for sequence, token in ended:
        _end(state, sequence, token, now)
    for failure in result.failed_rows:
        _fail(state, rows[failure.row].sequence, failure, now)


def _take_tokens(runs: list[Run], tokens: "array[int]") -> tuple[list[tuple[Sequence, int]], int]:
    """The pass: who may have ended with which token, and how many rows nobody wants any more, whose sequence has ended.

    A carried run is live and short of its limit, so the common row costs two tests and one append.
    """
    ended: list[tuple[Sequence, int]] = []
    num_wasted = 0
    for run, token in zip(runs, tokens, strict=True):
        if not run.is_carried:
            if run.sequence.finish is not None:
                num_wasted += 1
                continue
            run.sequence.late -= not run.is_live
            if len(run.tokens) + 1 == run.sequence.limit and token not in run.stop_token_ids:
                ended.append((run.sequence, token))
        run.tokens.append(token)
        if token in run.stop_token_ids:
            ended.append((run.sequence, token))
    return ended, num_wasted


def _note_first_tokens(state: State, last: list[Run], now: int) -> None:
    """A first token comes with an added row, so it is among the last of those delivered."""
    for run in last:
        sequence = run.sequence
        if not sequence.t_first_token:
            sequence.t_first_token = now
            state.outbox.start(sequence, now)
            if sequence.key.index == 0:  # the prompt is one, however many samples it has
                state.counters.num_prompt_tokens += sequence.num_prompt_tokens


def _publish_chunks(state: State, record: StepRecord) -> None:
    """Blocks that chunks have filled are published at once when somebody waits for such, else after the sends."""
    for run, count in record.added:
        if count > 1 and run.is_live:
            if state.cache.is_awaited:
                state.cache.publish(run)
            else:
                state.unpublished[run] = run.confirmed
    state.cache.is_awaited = False


def _clear_blame(state: State, runs: list[Run]) -> None:
    """A sequence whose token arrived is above suspicion."""
    if state.suspects:
        for run in runs:
            if state.suspects.pop(run.sequence, 0) is None:
                run.sequence.blame = 0


def _end(state: State, sequence: Sequence, token: int, now: int) -> None:
    """STOP beats LENGTH; a stop token before min_tokens is an ordinary token. The end of a constrained text is its end:
    before min_tokens it is drawn only where nothing else may follow."""
    known = len(sequence.tokens)
    assert state.capacity is not None
    is_complete = sequence.constraint is not None and token in state.capacity.eos_token_ids
    if is_complete or (token in sequence.stop_token_ids and known > sequence.min_length):
        state.finish(sequence, now, STOP, matched_token=token)
    elif known == sequence.limit:
        state.finish(sequence, now, LENGTH)


def _fail(state: State, sequence: Sequence, failure: FailedRow, now: int) -> None:
    """The first failed row ends its sequence; its later rows fail too and find it ended."""
    if sequence.finish is None:
        if failure.failure != FailureReason.CONSTRAINT_FAILED:  # then its KV is as good as any
            state.cache.taint(sequence)
        state.finish(sequence, now, (FinishReason.FAILED, failure.failure, failure.detail))
