"""Every sampling parameter in every company: same request, same tokens.

The product's scheduler and simulated executor in one process. Each parameter is asked for alone and among neighbours
with other parameters, whole and in chunks, at every depth, with room enough and preempted, through failed steps and
lost executors; and each time the tokens are those of the definition, drawn without any scheduler.
"""

from collections import Counter
from itertools import product

import msgspec
import numpy as np
import pytest

from services.executor import reference
from services.executor.hash_cells import simulated_logits
from services.wire import columns
from services.wire.messages import FailureReason, FinishReason, Sampling, SequenceKey, SlotInit, Submit
from tests.proof.laws import LawfulRig
from tests.proof.rules import VOCAB
from tests.proof.simulated_executor import SimulatedExecutor, alone
from tests.unit.scheduler.rig import limits, submit_message

NUM_OUTPUTS = 20
LIKELY = range(VOCAB // 2, VOCAB)  # what the simulated backend puts out
PAIRS = tuple(columns.pack([first, second]) for first in LIKELY for second in list(LIKELY)[first % 3 :: 3])

PARAMETERS: dict[str, Sampling] = {
    "temperature": Sampling(temperature=0.6),
    "greedy": Sampling(temperature=0.0),
    "top_k": Sampling(top_k=3),
    "top_p": Sampling(top_p=0.7),
    "min_p": Sampling(min_p=0.2),
    "repetition_penalty": Sampling(temperature=0.0, repetition_penalty=1.6),
    "presence_penalty": Sampling(temperature=0.0, presence_penalty=5.0),
    "frequency_penalty": Sampling(temperature=0.0, frequency_penalty=4.0),
    "logit_bias": Sampling(
        temperature=0.8, bias_token_ids=columns.pack([5, 40]), bias_values=columns.pack_floats([4.0, 6.0])
    ),
    "allowed_token_ids": Sampling(allowed_token_ids=columns.pack([3, 35, 41, 50])),
    "bad_words of one token": Sampling(bad_words=tuple(columns.pack([token]) for token in list(LIKELY)[::2])),
    "bad_words of two tokens": Sampling(temperature=0.0, bad_words=PAIRS),
    "min_tokens": Sampling(min_tokens=9, stop_token_ids=columns.pack(list(LIKELY)[::3])),
    "penalties that lift": Sampling(temperature=0.5, presence_penalty=-2.0, frequency_penalty=-0.5),
    "everything": Sampling(
        temperature=1.3,
        top_k=20,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        min_tokens=6,
        stop_token_ids=columns.pack(list(LIKELY)[::4]),
        bias_token_ids=columns.pack([33]),
        bias_values=columns.pack_floats([3.0]),
        bad_words=PAIRS[::2],
    ),
    "logprobs": Sampling(temperature=0.9, top_k=9, logprobs=2),
}
NAMES = list(PARAMETERS)
WITH_HISTORY = [name for name in NAMES if PARAMETERS[name].needs_history and name != "bad_words of one token"]

# Depths and chunk sizes: two of each in the quick run, all of them in the long one.
WAYS = pytest.mark.parametrize(
    ("depth", "chunk"),
    [
        pytest.param(*way, marks=() if way in ((2, 64), (3, 2)) else pytest.mark.soak)
        for way in product((1, 2, 3), (2, 64))
    ],
)
TROUBLES = ("", "a failed step", "a lost executor")


def request(name: str, n: int = 1) -> Submit:
    """A request that asks for one of PARAMETERS; prompts of many lengths, some of whose tokens are drawn too."""
    index = NAMES.index(name)
    prompt = [2 + index, *[(index * 7 + place * place) % VOCAB for place in range(3 + index % 9)]]
    sampling = PARAMETERS[name]
    stops = tuple(columns.unpack(sampling.stop_token_ids))
    submit = submit_message(name, prompt, max_tokens=NUM_OUTPUTS, stop_ids=stops, seed=17 * index + 1, n=n)
    stopping = msgspec.structs.replace(submit.stopping, min_tokens=sampling.min_tokens)
    return msgspec.structs.replace(submit, sampling=sampling, stopping=stopping)


def rig_of(depth: int, chunk: int, preemption: str, num_blocks: int) -> LawfulRig:
    bounds = limits(depth=depth, chunk_size=chunk, token_budget=16, preemption=preemption, forecast=False)
    rig = LawfulRig(bounds, executor=SimulatedExecutor, num_blocks=num_blocks, num_host_blocks=24, copy_lag=1)
    rig.watch(alone)
    return rig


def run_all(rig: LawfulRig, names: list[str], trouble: str = "") -> Counter[str]:
    """Submit and run to the end, with trouble twice on the way; how often each took a slot."""
    for name in names:
        rig.submit(request(name))
    num_delivered = 0
    for number in range(4000):
        if rig.plan() is None:
            if not rig.executor.plans:
                break
            rig.deliver(fails=trouble == "a failed step" and num_delivered in (6, 15))
            num_delivered += 1
        if trouble == "a lost executor" and number in (17, 41):
            rig.kill_executor()
    rig.run()
    rig.check_all_ended(interfered=set(), judged=False)
    assert all(close.reason != FinishReason.FAILED for close in rig.closes.values())
    inits = [op for plan in rig.plans for op in plan.ops if isinstance(op, SlotInit)]
    return Counter(name for op in inits for name in names if op.sampling == PARAMETERS[name])


@WAYS
@pytest.mark.parametrize("name", NAMES)
def test_alone(name: str, depth: int, chunk: int) -> None:
    for trouble in TROUBLES:
        run_all(rig_of(depth, chunk, "recompute", num_blocks=64), [name], trouble)


@WAYS
@pytest.mark.parametrize("first", [0, 8])
def test_among_seven_neighbours_with_other_parameters(first: int, depth: int, chunk: int) -> None:
    for trouble in TROUBLES:
        run_all(rig_of(depth, chunk, "recompute", num_blocks=64), NAMES[first : first + 8], trouble)


@WAYS
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted(preemption: str, depth: int, chunk: int) -> None:
    """The last to come are preempted first, so each set of neighbours comes in several orders."""
    for first in (0, 8):
        names = NAMES[first : first + 8]
        num_stays: Counter[str] = Counter()
        for turn in (0, 3, 6):
            order = names[turn:] + names[:turn]
            num_stays += run_all(rig_of(depth, chunk, preemption, num_blocks=12), order)
        assert all(num_stays[name] > 3 for name in names), f"never preempted: {num_stays}"


@WAYS
def test_the_samples_of_one_request(depth: int, chunk: int) -> None:
    for first in range(0, len(NAMES), 4):
        rig = rig_of(depth, chunk, "recompute", num_blocks=100)
        for name in NAMES[first : first + 4]:
            rig.submit(request(name, n=3))
        rig.run()
        rig.check_all_ended(interfered=set(), judged=False)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_request_with_nothing_left_to_draw_fails_and_its_neighbours_do_not(depth: int) -> None:
    rig = rig_of(depth, 64, "recompute", num_blocks=64)
    # Each token may stand once only: after both of them nothing is left.
    words = tuple(columns.pack(pair) for pair in ([40, 40], [41, 41], [40, 41, 40], [41, 40, 41]))
    stuck = Sampling(allowed_token_ids=columns.pack([40, 41]), bad_words=words)
    rig.submit(request("top_k"))
    rig.submit(msgspec.structs.replace(submit_message("stuck", [9, 8, 7]), sampling=stuck))
    rig.submit(request("presence_penalty"))
    rig.run()
    rig.check_all_ended(interfered=set(), judged=False)
    close = rig.close_of("stuck")
    assert (close.reason, close.failure) == (FinishReason.FAILED, FailureReason.CONSTRAINT_FAILED)
    assert sorted(rig.output("stuck")) == [40, 41]
    assert [rig.close_of(name).reason for name in ("top_k", "presence_penalty")] == [FinishReason.LENGTH] * 2


@pytest.mark.parametrize("name", NAMES)
def test_a_row_that_is_not_finite_fails_alone_and_its_kv_is_found_by_nobody(name: str) -> None:
    rig = rig_of(2, 64, "recompute", num_blocks=64)
    others = [other for other in ("top_k", "presence_penalty") if other != name]
    for each in (others[0], name, *others[1:]):
        rig.submit(request(each))
    rig.until(lambda: len(rig.output(name)) >= 6)
    rows = [run.sequence.key.request for run in rig.scheduler.state.inflight[0].rows]
    rig.deliver(poison=rows.index(name))
    rig.run()
    close = rig.close_of(name)
    assert (close.reason, close.failure) == (FinishReason.FAILED, FailureReason.POISONED_ROW)
    again = request(name)
    rig.submit(msgspec.structs.replace(again, identity=msgspec.structs.replace(again.identity, incarnation=2)))
    rig.run()
    rig.check_all_ended(interfered=set(), judged=False)
    assert all(rig.close_of(other).reason != FinishReason.FAILED for other in others)
    assert rig.starts[SequenceKey("g", name, 2, 0)].num_cached_tokens == 0


# Would it be noticed? ----------------------------------------------------------------------------------------------


def late_outputs(submit: Submit) -> list[int | None]:
    """What comes out when every draw misses the token before it."""
    prompt = list(columns.unpack(submit.prompt_tokens))
    op = SlotInit(1, 1, submit.sampling, submit.seed, len(prompt))
    tokens = [*prompt, *alone(tuple(prompt), submit.seed, NUM_OUTPUTS, submit.sampling)]
    return [_draw(op, tokens[:end], tokens[: max(end - 1, len(prompt))]) for end in range(len(prompt), len(tokens))]


def _draw(op: SlotInit, tokens: list[int], history: list[int]) -> int | None:
    ids, logits = simulated_logits(op, tokens, VOCAB)
    scores = reference.edited(op, np.array(history), ids, logits)
    return reference.draw(op, len(tokens), ids, scores)


@pytest.mark.parametrize("name", WITH_HISTORY)
def test_a_history_one_token_late_would_be_noticed(name: str) -> None:
    submit = request(name)
    prompt = tuple(columns.unpack(submit.prompt_tokens))
    assert late_outputs(submit) != alone(prompt, submit.seed, NUM_OUTPUTS, submit.sampling)
