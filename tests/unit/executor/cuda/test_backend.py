"""The device's backend on a CPU against the plain one: same tokens, whatever is captured, padded or in flight."""

from pathlib import Path

import pytest
import torch

from services.executor.answers import Launched
from services.executor.batch import I64, Mask, StepBatch
from services.executor.core import ExecutorCore
from services.executor.cuda.choice import Choice
from services.executor.cuda.device_operations import TritonOperations
from services.executor.grammars import Grammars
from services.executor.masks import TokenMasks
from services.executor.matchers import Matchers
from services.wire import columns
from services.wire.messages import (
    CopyBlocks,
    CopyDirection,
    FailureReason,
    Hello,
    Op,
    RowFlag,
    Sampling,
    SlotInit,
    SlotRetire,
    StepPlan,
    StepResult,
)
from tests.unit.executor import tiny_llama
from tests.unit.executor.cuda.rig import PLAIN, Built, device_backend, oracle
from tests.unit.executor.rig import GREEDY, Driver, Request, Row, append, generate, init, plan, tokens_of
from tests.unit.executor.sampling_rig import masks_of

BIASED = Sampling(temperature=0.0, bias_token_ids=columns.pack([7]), bias_values=columns.pack_floats([3.0]))
PENALIZED = Sampling(temperature=0.0, repetition_penalty=1.4, frequency_penalty=0.3)
REPORTED = Sampling(temperature=0.0, logprobs=3, prompt_logprobs=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.write(tmp_path_factory.mktemp("model") / "tiny.gguf", tiny_llama.random_weights(3))


def requests(sampling: Sampling = GREEDY) -> list[Request]:
    """Whole prompts and chunks, joining as they like; up to five rows a step."""
    return [
        Request([1, 5, 9], 9, sampling, seed=11),
        Request(list(range(3, 40)), 6, chunk=10, seed=12),
        Request([8], 12, sampling, seed=13, starts_at=2),
        Request([4] * 9, 5, chunk=4, starts_at=3, seed=14),
        Request([60, 61], 4, sampling, starts_at=6, seed=15),
    ]


@pytest.mark.parametrize(
    "sampling", [GREEDY, BIASED, PENALIZED, REPORTED], ids=["greedy", "biased", "penalized", "reported"]
)
@pytest.mark.parametrize("graph_rows", [0, 3, 8])
def test_it_generates_what_the_oracle_generates(model: Path, graph_rows: int, sampling: Sampling) -> None:
    expected, found = requests(sampling), requests(sampling)
    generate(oracle(model), expected)
    generate(device_backend(model, Built(graph_rows=graph_rows)), found)
    assert [request.outputs for request in found] == [request.outputs for request in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert any(request.logprobs for request in found) == (sampling is REPORTED)


def with_kernels() -> Built:
    """Everything in Triton, run by its interpreter."""
    pytest.importorskip("triton", reason="triton has no wheel for this machine")
    from services.executor.cuda import draw_kernels  # noqa: PLC0415

    return Built(TritonOperations, Choice("triton", "triton"), draw_kernels.draw)


def test_the_kernels_together_generate_what_the_oracle_generates(model: Path) -> None:
    expected, found = ([Request([1, 5, 9], 2), Request([8], 2, starts_at=1)] for _ in range(2))
    generate(oracle(model), expected)
    generate(device_backend(model, with_kernels()), found)
    assert [request.outputs for request in found] == [request.outputs for request in expected]


DRAWN = {
    "plain": Sampling(temperature=1.3),
    "cut": Sampling(temperature=1.0, top_k=20, top_p=0.9),
    "edited": Sampling(temperature=1.0, repetition_penalty=1.2),
}


@pytest.mark.parametrize("sampling", DRAWN.values(), ids=DRAWN.keys())
def test_a_drawn_row_gets_what_it_gets_alone(model: Path, sampling: Sampling) -> None:
    together = requests(sampling)
    generate(device_backend(model, Built(graph_rows=8)), together)
    alone = requests(sampling)
    for request in alone:
        request.starts_at = 0
        generate(device_backend(model), [request])
    assert [request.outputs for request in together] == [request.outputs for request in alone]
    again = [Request([1, 5, 9], 9, sampling, seed=99)]
    assert generate(device_backend(model), again) != [alone[0].outputs]


class Pipeline:
    """Decode steps of two rows, up to `depth` of them launched before the first is waited for."""

    def __init__(self, path: Path, built: Built) -> None:
        self.backend = device_backend(path, built)
        self.core = ExecutorCore(self.backend, instance=1)
        self.waiting: list[Launched] = []

    def launch(self, message: Hello | StepPlan) -> None:
        work = self.core.prepare(message, 0)
        assert work is not None
        self.waiting.append(self.core.launch(work))

    def tokens(self) -> list[int]:
        result = self.core.finish(self.waiting.pop(0))
        assert isinstance(result, StepResult)
        return tokens_of(result)

    def run(self, depth: int, num_steps: int) -> list[list[int]]:
        self.launch(Hello(1))
        self.core.finish(self.waiting.pop(0))
        ops: list[Op] = [
            init(1, 3),
            init(2, 2, Sampling(temperature=1.0)),
            append(1, range(1, 9)),
            append(2, range(9, 17)),
        ]
        messages = [plan(1, ops, [Row(1, 0, [5, 6, 7]), Row(2, 0, [8, 9])])]
        messages += [plan(step) for step in range(2, num_steps + 1)]
        found: list[list[int]] = []
        for message in messages:
            self.launch(message)
            if len(self.waiting) == depth:
                found.append(self.tokens())
        return [*found, *(self.tokens() for _ in list(self.waiting))]


@pytest.mark.parametrize("graph_rows", [0, 4])
@pytest.mark.parametrize("depth", [2, 3])
def test_steps_in_flight_change_no_token(model: Path, depth: int, graph_rows: int) -> None:
    expected = Pipeline(model, PLAIN).run(1, 12)
    assert Pipeline(model, Built(graph_rows=graph_rows)).run(depth, 12) == expected
    assert len({tuple(tokens) for tokens in expected}) > 5


def test_kv_that_was_swapped_out_and_in_elsewhere_is_the_same(model: Path) -> None:
    backend = device_backend(model)
    driver = Driver(backend)
    prompt = [3, 14, 15, 9, 26, 5, 35]
    first = driver.run([init(1, 8), append(1, [1, 2])], [Row(1, 0, prompt, samples=False)])
    out = CopyBlocks(1, CopyDirection.OUT, columns.pack([1, 2]), columns.pack([4, 5]))
    back = CopyBlocks(2, CopyDirection.IN, columns.pack([4, 5]), columns.pack([20, 11]))
    swapped = driver.run([out, SlotRetire(1, 1)])
    returned = driver.run([back])
    assert [columns.unpack(result.copies_done).tolist() for result in (first, swapped, returned)] == [[], [1], [2]]
    found = driver.run([init(2, 8), append(2, [20, 11])], [Row(2, 7, [8])])
    alone = Request([*prompt, 8], 1)
    assert tokens_of(found) == generate(device_backend(model), [alone])[0]
    within = CopyBlocks(3, CopyDirection.WITHIN, columns.pack([20, 11]), columns.pack([30, 31]))
    again = driver.run([SlotRetire(2, 2), within, init(3, 8), append(3, [30, 31])], [Row(3, 7, [8])])
    assert tokens_of(again) == tokens_of(found) and not columns.unpack(again.copies_done).tolist()


def test_a_row_that_is_not_finite_is_poisoned_and_leaves_0_for_the_next_step(model: Path) -> None:
    backend = device_backend(model, Built(graph_rows=4))
    driver = Driver(backend)
    ops: list[Op] = [init(1), init(2), append(1, [1]), append(2, [2])]
    driver.run(ops, [Row(1, 0, [5]), Row(2, 0, [6])])
    for keys, _ in backend._kv.layers:
        keys[1].fill_(torch.nan)
    result = driver.carry()
    assert [(failed.row, failed.failure) for failed in result.failed_rows] == [(0, FailureReason.POISONED_ROW)]
    assert len(tokens_of(result)) == 1 and int(backend._last_token[1]) == 0
    assert len(tokens_of(driver.carry())) == 1


def test_a_constrained_row_follows_its_masks_beside_others(model: Path) -> None:
    allowed = [4, 7, 50]

    class Allowing(Matchers):
        def begin(self, op: SlotInit) -> None:
            pass

        def masks(self, batch: StepBatch) -> TokenMasks | None:
            return masks_of({1: allowed}, tiny_llama.VOCAB) if len(batch.masked_rows) else None

        def advance(self, batch: StepBatch, masks: TokenMasks, tokens: I64, is_drawn: Mask) -> None:
            drawn.append(int(tokens[masks.rows[0]]))

    drawn: list[int] = []
    backend = device_backend(model)
    backend.follow(Allowing(Grammars(lambda constraint: None, 0), backend.capacity.card, 1))
    driver = Driver(backend)
    ops: list[Op] = [init(1), init(2), append(1, [1]), append(2, [2])]
    result = driver.run(ops, [Row(1, 0, [5]), Row(2, 0, [6], flags=int(RowFlag.MASKED))])
    free, masked = tokens_of(result)
    assert masked in allowed and drawn == [masked] and int(backend._last_token[2]) == masked
    assert [free] == generate(device_backend(model), [Request([5], 1)])[0]
