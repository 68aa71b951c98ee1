"""The real model in float32 through gRPC: token ids and logprobs equal the reference, alone and however it is batched.

The reference outputs are those of an independent implementation (tests/data/golden/README.md). A token may differ only
where the reference's two best logits are closer than TIE; what follows a tie is another text and is not compared.
"""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from services.runtime.models import default_model
from tandem import Client
from tests.checkpoint import write_checkpoint
from tests.e2e.serving import Serving, serving

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
SHORT = [json.loads(line) for line in (GOLDEN / "greedy.jsonl").read_text().splitlines()]
LONG = [json.loads(line) for line in (GOLDEN / "greedy_long.jsonl").read_text().splitlines()]
TIE = 1e-3
LOGPROB_ERROR = 1e-3
CALL_S = 280.0

# Depth, token_budget, chunk_size, num_blocks (0: plenty), how many requests at once, and whether the long prompts join.
# Blocks for a few sequences only make preemption certain; a budget of 16 makes chunks and queueing certain.
COMBINATIONS = {
    "alone": (2, 512, 0, 0, 1, True),
    "together, depth 1": (1, 512, 0, 0, 24, False),
    "together, depth 2": (2, 512, 0, 0, 24, True),
    "together, depth 3": (3, 512, 0, 0, 24, False),
    "budget 16, depth 1": (1, 16, 0, 0, 24, False),
    "budget 16, depth 2": (2, 16, 0, 0, 24, False),
    "budget 16, depth 3, few blocks": (3, 16, 0, 12, 24, False),
    "chunks of 7, depth 2": (2, 64, 7, 0, 8, False),
    "few blocks, depth 1": (1, 512, 0, 40, 24, False),
    "few blocks, depth 2": (2, 512, 0, 40, 24, False),
    "few blocks, depth 3, chunks of 16": (3, 512, 16, 40, 24, False),
}

# Pairs of the scheduler's choices, every two values of different choices together at least once: depth, policy,
# preemption, chunk_size, prefix_cache. All with blocks for a few sequences only.
CHOICES = [
    (1, "fcfs", "recompute", 0, True),
    (2, "fcfs", "swap", 7, False),
    (3, "fcfs", "auto", 16, True),
    (2, "priority", "recompute", 16, False),
    (3, "priority", "swap", 0, True),
    (1, "priority", "auto", 7, False),
    (3, "fair", "recompute", 7, True),
    (1, "fair", "swap", 16, False),
    (2, "fair", "auto", 0, True),
    (2, "static", "recompute", 7, True),
    (1, "static", "swap", 0, False),
    (3, "static", "auto", 16, False),
]

# What the quick run covers: alone, and every way of batching once, with the first tokens of each output.
QUICK = ("together, depth 2", "budget 16, depth 3, few blocks", "chunks of 7, depth 2", "few blocks, depth 1")
QUICK_TOKENS = 12


def test_outputs_alone_begin_as_the_reference() -> None:
    _run("alone", [_cut(case) for case in [*SHORT, LONG[0]]])


@pytest.mark.parametrize("name", QUICK)
def test_outputs_together_begin_as_the_reference(name: str) -> None:
    _run(name, [_cut(case) for case in SHORT])


@pytest.mark.soak
@pytest.mark.parametrize("name", COMBINATIONS)
def test_outputs_equal_the_reference(name: str) -> None:
    _run(name, SHORT + LONG if COMBINATIONS[name][-1] else SHORT)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The default model as a Hugging Face directory, float32."""
    folder = tmp_path_factory.mktemp("default") / "smollm2"
    write_checkpoint(default_model(), folder)
    yield folder
    shutil.rmtree(folder)


def test_a_hugging_face_directory_of_the_same_model_begins_as_the_reference(directory: Path) -> None:
    _run("together, depth 2", [_cut(case) for case in SHORT[::4]], directory)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["together, depth 2", "chunks of 7, depth 2"])
def test_a_hugging_face_directory_of_the_same_model_equals_the_reference(name: str, directory: Path) -> None:
    _run(name, SHORT + LONG if COMBINATIONS[name][-1] else SHORT, directory)


@pytest.mark.soak
@pytest.mark.parametrize("choice", CHOICES)
def test_no_choice_of_the_scheduler_changes_an_output(choice: tuple[int, str, str, int, bool]) -> None:
    names = ("depth", "policy", "preemption", "chunk_size", "prefix_cache")
    scheduler: dict[str, Any] = {**dict(zip(names, choice, strict=True)), "token_budget": 64, "forecast": False}
    _compare(
        {"scheduler": scheduler, "executor": {"num_blocks": 40, "num_host_blocks": 400}},
        24,
        SHORT,
    )


def _cut(case: dict[str, Any]) -> dict[str, Any]:
    columns = {name: case[name][:QUICK_TOKENS] for name in ("output_token_ids", "top2_margin", "logprob")}
    is_whole = len(case["output_token_ids"]) <= QUICK_TOKENS
    return {**case, **columns, "text": case["text"] if is_whole else None}


def _run(name: str, cases: list[dict[str, Any]], path: Path | None = None) -> None:
    """path: another model than the default one."""
    depth, token_budget, chunk_size, num_blocks, concurrency, _ = COMBINATIONS[name]
    # Looking ahead would avoid the preemption that few blocks are there to force.
    scheduler = {"depth": depth, "token_budget": token_budget, "chunk_size": chunk_size, "forecast": not num_blocks}
    _compare(
        {
            "scheduler": scheduler,
            "executor": {"num_blocks": num_blocks or 2048},
            "model": {"path": str(path or "")},
        },
        concurrency,
        cases,
    )


def _compare(settings: dict[str, dict[str, Any]], concurrency: int, cases: list[dict[str, Any]]) -> None:
    """Send every case, so many at once, to a server with these settings; few blocks must lead to preemption."""
    settings = {**settings, "executor": {"precision": "exact", **settings["executor"]}}
    common: dict[str, dict[str, Any]] = {"gateway": {"listen": "127.0.0.1:0"}, "links": {"death_s": 60.0}}
    with serving({**settings, **common}) as server, Client(server.address) as client:
        with ThreadPoolExecutor(concurrency) as pool:
            problems = list(pool.map(lambda case: _difference(client, case), cases))
        assert not any(problems), [problem for problem in problems if problem]
        # A static batch forms at once, and what joins in one step of 64 tokens may not fill even few blocks.
        if settings["executor"]["num_blocks"] < 100 and settings["scheduler"].get("policy") != "static":
            assert _num_preemptions(server) > 0, "the pool was large enough after all"


def _difference(client: Client, case: dict[str, Any]) -> str:
    """How the answer to one prompt differs from the reference; empty when it does not."""
    reply = client.generate(
        case["prompt_token_ids"],
        max_tokens=max(len(case["output_token_ids"]), 1),
        temperature=0,
        logprobs=0,
        return_token_ids=True,
        timeout_s=CALL_S,
    )
    completion = reply.completions[0]
    wanted = list(zip(case["output_token_ids"], case["top2_margin"], case["logprob"], strict=True))
    got = list(zip(completion.token_ids, completion.logprobs, strict=True))
    for index, ((token, margin, logprob), (got_token, got_logprobs)) in enumerate(zip(wanted, got, strict=False)):
        if token != got_token:
            tie = margin < TIE
            return "" if tie else f"{case['prompt'][:40]!r}: token {index} is {got_token}, not {token}"
        assert got_logprobs is not None, "an output token without log-probabilities"
        if abs(got_logprobs.chosen.logprob - logprob) > LOGPROB_ERROR:
            return f"{case['prompt'][:40]!r}: logprob {index} is {got_logprobs.chosen.logprob}, not {logprob}"
    if len(wanted) != len(got):
        return f"{case['prompt'][:40]!r}: {len(got)} tokens, not {len(wanted)}"
    if case["text"] not in (None, completion.text):
        return f"{case['prompt'][:40]!r}: text {completion.text!r}, not {case['text']!r}"
    return ""


def _num_preemptions(server: Serving) -> int:
    loads = [entry for entry in server.entries() if entry["event"] == "engine.load"]
    return max((entry.get("num_preemptions", 0) for entry in loads), default=0)
