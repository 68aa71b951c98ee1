"""What may enter: a Submit becomes a waiting sequence for each sample, or is refused.

Every refusal but one is an open and a close, so that the text side ends the call as it ends any other; only a live
duplicate of another gateway's request must never open. Validation is the gateway's; here stands what only the
scheduler knows: queue, capacity, duplicates, drain.
"""

from functools import lru_cache

from msgspec.structs import replace

from services.scheduler.core.prefix import root_of
from services.scheduler.core.sequence import Request, Sequence
from services.scheduler.core.state import CANCELLED, State
from services.wire import columns
from services.wire.messages import FailureReason, FinishReason, Refused, SequenceKey, Submit

Verdict = tuple[FinishReason, FailureReason, str]


def submit_request(state: State, submit: Submit, now: int) -> Refused | None:
    """Open a call; the answer is set only for a duplicate, which is never opened."""
    identity = submit.identity
    older = state.requests.get(identity.request)
    if older is not None:
        same_gateway = older.identity.gateway == identity.gateway
        if not same_gateway or older.identity.incarnation >= identity.incarnation:
            return Refused(identity, FailureReason.DUPLICATE, "a live request has this id")
        cancel_request(state, older, now)  # over for its gateway, which has just used the id again
    if not state.requests:
        state.drain_rate.resume(now)
    state.credits.know(identity.gateway, state.outbox.last_number)
    deadline = None if submit.remaining_ms is None else now + submit.remaining_ms * 1_000_000
    request = Request(identity, deadline)
    for index in range(submit.n):
        request.sequences.append(_make_sequence(state, request, submit, index, now))
    request.num_open = submit.n
    state.requests[identity.request] = request
    refusal = _refusal(state, submit, request.sequences[0], now)
    for sequence in request.sequences:
        state.outbox.open(sequence)
        if refusal is None:
            if submit.sampling.constraint is not None:
                state.constraints.follow(sequence, submit.sampling.constraint)
            state.waiting.add(sequence)
            state.unhashed.append(sequence)
        else:
            retry_after_ms = None
            if refusal[1] in (FailureReason.QUEUE_FULL, FailureReason.DRAINING):
                retry_after_ms = state.drain_rate.retry_after_ms(now, len(state.waiting))
            state.close(sequence, now, refusal, retry_after_ms)
    return None


def cancel_request(state: State, request: Request, now: int, ending: Verdict = CANCELLED) -> None:
    """End every open sequence of a call."""
    for sequence in request.sequences:
        if sequence.finish is None:
            state.finish(sequence, now, ending)


def judge(state: State, sequence: Sequence) -> Verdict | None:
    """Whether a sequence can ever fit the present executor; if so its limit is set, else why not."""
    capacity = state.capacity
    assert capacity is not None, "judged before an executor was there"
    num_prompt = sequence.num_prompt_tokens
    max_tokens = sequence.stopping.max_tokens
    sequence.limit = min(capacity.context_length, state.pool.num_positions)
    for size, failure, name in (
        (capacity.context_length, FailureReason.CONTEXT_LENGTH, "the context"),
        (state.pool.num_positions, FailureReason.KV_CAPACITY, "the KV pool"),
    ):
        if len(sequence.tokens) >= size:
            return FinishReason.FAILED, failure, f"{len(sequence.tokens)} tokens leave no room in {name} of {size}"
        if max_tokens is not None and num_prompt + max_tokens > size:
            text = f"prompt of {num_prompt} and max_tokens {max_tokens} exceed {name} of {size} tokens"
            return FinishReason.FAILED, failure, text
    if max_tokens is not None:
        sequence.limit = num_prompt + max_tokens
    return None


def _make_sequence(state: State, request: Request, submit: Submit, index: int, now: int) -> Sequence:
    identity = submit.identity
    key = SequenceKey(identity.gateway, identity.request, identity.incarnation, index)
    tokens = columns.unpack(submit.prompt_tokens)
    assert tokens, "a prompt has at least one token"
    # A constraint is told to the executor once, by its number, not with each slot.
    sampling = submit.sampling
    if sampling.constraint is not None:
        sampling = replace(sampling, constraint=None)
    if index and sampling.prompt_logprobs is not None:  # the prompt is one, and so are its logprobs
        sampling = replace(sampling, prompt_logprobs=None)
    sequence = Sequence(request, key, tokens, (sampling, submit.stopping, submit.output))
    sequence.stop_token_ids = _ids(submit.stopping.stop_token_ids)
    if submit.sampling.constraint is not None and state.capacity is not None:
        sequence.stop_token_ids |= state.capacity.eos_token_ids  # ends it whatever else was asked
    sequence.min_length = len(tokens) + submit.stopping.min_tokens
    sequence.seed = seed_of_sample(submit.seed, index)
    sequence.cache_root = root_of(submit.cache_salt)
    sequence.priority = submit.priority
    sequence.tenant = state.tenants.join(submit.tenant)
    sequence.arrival = state.num_arrivals
    sequence.t_submitted = now
    state.num_arrivals += 1
    return sequence


@lru_cache(maxsize=256)
def _ids(column: bytes) -> frozenset[int]:
    """Most requests have the same stop tokens, and one set of them is quicker to look at than many."""
    return frozenset(columns.unpack(column))


def _refusal(state: State, submit: Submit, first: Sequence, now: int) -> Verdict | None:
    """Why none of the call's sequences may enter, or None. Sets the limit of each."""
    if state.is_draining:
        return FinishReason.FAILED, FailureReason.DRAINING, "the server takes no new work"
    for sequence in first.request.sequences:
        verdict = judge(state, sequence)
        if verdict is not None:
            return verdict
    num_waiting = len(state.waiting)
    if num_waiting + submit.n > state.limits.max_waiting:
        return FinishReason.FAILED, FailureReason.QUEUE_FULL, f"{num_waiting} sequences are waiting"
    return _unreachable(state, submit, first, now)


def _unreachable(state: State, submit: Submit, first: Sequence, now: int) -> Verdict | None:
    """Whether the deadline has passed, or will while the requests ahead drain at the measured rate."""
    if submit.remaining_ms is None:
        return None
    if submit.remaining_ms <= 0:
        return FinishReason.FAILED, FailureReason.DEADLINE, "the deadline had passed on arrival"
    rate = state.drain_rate.per_second(now)
    if not rate:
        return None
    precedence = state.policy.precedence
    ahead = {sequence.request for sequence in state.waiting if precedence(sequence) < precedence(first)}
    wait_ms = len(ahead) / rate * 1000
    if wait_ms > submit.remaining_ms:
        text = f"the queue takes {wait_ms:.0f} ms at the measured rate, the deadline leaves {submit.remaining_ms} ms"
        return FinishReason.FAILED, FailureReason.DEADLINE_UNREACHABLE, text
    return None


def seed_of_sample(seed: int, index: int) -> int:
    """The seed of one of n samples: the request's own for the first, a hash of both for the rest.

    The hash is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
    OOPSLA 2014, figure 17) over seed + index x golden gamma, modulo 2**64.
    """
    if index == 0:
        return seed
    mask = (1 << 64) - 1
    z = (seed + index * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)
