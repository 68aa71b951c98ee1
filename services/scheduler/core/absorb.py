"""Taking in one step's result: tokens become known, sequences end, everything else is told.

One pass over the sampled rows. A row names a Run: a live one gets its position confirmed; an ended one whose sequence
goes on (preempted meanwhile) still delivers its token, which is valid; one whose sequence has ended is dropped, here
and nowhere else.
"""

from array import array

from services.scheduler.core import scores
from services.scheduler.core.sequence import Run, Sequence
from services.scheduler.core.state import LENGTH, STOP, State
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
        run.confirmed += count - samples  # the pass below confirms the last position of a sampled row
    for run, count in record.copied:
        run.confirmed += count
    ended, dropped = _take_tokens(runs, tokens)
    delivered = [run.sequence for run in runs]
    if dropped:
        delivered = [sequence for index, sequence in enumerate(delivered) if index not in dropped]
        tokens = array("i", [token for index, token in enumerate(tokens) if index not in dropped])
    if record.added:
        _note_first_tokens(state, delivered, now)
    state.counters.num_output_tokens += len(delivered)
    state.counters.num_wasted_rows += len(dropped)
    logprobs = result.logprobs and scores.of_outputs(result.logprobs, rows, delivered)
    prompts, silent = None, list[Sequence]()
    if result.prompt_logprobs is not None:
        prompts, silent = scores.of_prompts(result.prompt_logprobs, record, delivered)
    state.outbox.deliver(delivered, tokens, logprobs, prompts, silent)
    _clear_blame(state, runs)
    for run, count in record.added:
        if count > 1 and run.is_live:
            state.cache.publish(run)  # at once: somebody may be waiting for these blocks
    for sequence, token in ended:
        _end(state, sequence, token, now)
    for failure in result.failed_rows:
        _fail(state, rows[failure.row].sequence, failure, now)


def _take_tokens(runs: list[Run], tokens: "array[int]") -> tuple[list[tuple[Sequence, int]], dict[int, None]]:
    """The pass: who may have ended with which token, and the indices of rows nobody wants any more.

    A carried run is live and short of its limit, so the common row costs one test, one count and one append.
    """
    ended: list[tuple[Sequence, int]] = []
    dropped: dict[int, None] = {}
    for index, (run, token) in enumerate(zip(runs, tokens, strict=True)):
        if run.is_carried:
            run.confirmed += 1
        elif run.sequence.finish is not None:
            dropped[index] = None
            continue
        else:
            if run.is_live:
                run.confirmed += 1
            else:
                run.sequence.late -= 1
            if len(run.tokens) + 1 == run.sequence.limit and token not in run.stop_token_ids:
                ended.append((run.sequence, token))
        run.tokens.append(token)
        if token in run.stop_token_ids:
            ended.append((run.sequence, token))
    return ended, dropped


def _note_first_tokens(state: State, delivered: list[Sequence], now: int) -> None:
    for sequence in delivered:
        if not sequence.t_first_token:
            sequence.t_first_token = now
            state.outbox.start(sequence, now)
            if sequence.key.index == 0:  # the prompt is one, however many samples it has
                state.counters.num_prompt_tokens += sequence.num_prompt_tokens


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
