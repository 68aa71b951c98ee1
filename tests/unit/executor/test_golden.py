"""The default model reproduces what the reference implementation put out: ids equal, logprobs within 1e-3."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.executor.backend import Backend
from services.executor.opening import open_on_cpu
from services.runtime.settings import ExecutorSettings
from services.wire.messages import Sampling
from tests.unit.executor.rig import Request, generate

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
TIE = 1e-3
# Short ones, chat and raw, and few enough that the test stays quick.
NUM_PROMPTS, NUM_OUTPUTS = 8, 20


@pytest.fixture(scope="module")
def backend(default_model: Path) -> Backend:
    return open_on_cpu(ExecutorSettings(precision="exact", num_blocks=200, max_rows=16), default_model)


def golden(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / name).read_text().splitlines()]


def check(request: Request, case: dict[str, Any]) -> None:
    """Equal up to the first tie, if any."""
    for index, token in enumerate(request.outputs):
        if token != case["output_token_ids"][index]:
            assert case["top2_margin"][index] < TIE, f"output {index}: {token}, not {case['output_token_ids'][index]}"
            return
        assert request.logprobs[index] == pytest.approx(case["logprob"][index], abs=TIE)


def as_request(case: dict[str, Any], num_outputs: int, chunk: int) -> Request:
    sampling = Sampling(temperature=0.0, logprobs=0)
    return Request(case["prompt_token_ids"], min(num_outputs, len(case["output_token_ids"])), sampling, chunk=chunk)


def test_short_prompts_packed_together(backend: Backend) -> None:
    cases = golden("greedy.jsonl")
    cases = [*cases[: NUM_PROMPTS // 2], *cases[-NUM_PROMPTS // 2 :]]
    requests = [as_request(case, NUM_OUTPUTS, chunk=50) for case in cases]
    generate(backend, requests)
    for request, case in zip(requests, cases, strict=True):
        check(request, case)


def test_a_long_prompt_in_chunks(backend: Backend) -> None:
    case = min(golden("greedy_long.jsonl"), key=lambda case: len(case["prompt_token_ids"]))
    request = as_request(case, 6, chunk=400)
    generate(backend, [request])
    check(request, case)
