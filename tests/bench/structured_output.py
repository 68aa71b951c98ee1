"""What structured output costs: compiling, a token's mask, and those who share their steps with it.

`neighbours`: the default model in a whole server. So many plain requests run beside as many that go on for longer, in
turn free ones and ones that follow a JSON schema; the figure is the throughput of the plain ones, and its ratio. Both
arms have as many rows in each step and draw alike, so that only the masks differ; the arms take turns at going first.
"""

import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np

from services.executor.grammar import Compiler, Grammar
from services.executor.masks import num_words
from services.runtime.models import resolve
from services.runtime.settings import ExecutorSettings, ModelSettings
from services.tokenizer.tokenizer import load
from services.wire.messages import Constraint, ConstraintKind
from tandem.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from tests.e2e.processes import Settings, server
from tests.e2e.schemas import schemas

NUM_SCHEMAS = 200
NUM_PLAIN = 8
PLAIN_TOKENS = 96
NEIGHBOUR_TOKENS = 1000
ROUNDS = 8
CALL_S = 600.0
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
# It cannot be closed before more tokens than a neighbour may put out.
ENDLESS = {
    "type": "array",
    "minItems": 200,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "color": {"enum": ["red", "green", "blue"]},
            "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 4},
        },
        "required": ["name", "color"],
        "additionalProperties": False,
    },
}


def run() -> dict[str, object]:
    """Microseconds by percentile, and tokens a second."""
    return {"library": library(), "neighbours": neighbours()}


def library() -> dict[str, object]:
    """Compile varied schemas, then walk through each in a random way to its end."""
    vocabulary = load(resolve(ModelSettings()))
    compiler = Compiler(ExecutorSettings(), lambda: vocabulary)
    compiler(Constraint(ConstraintKind.JSON_OBJECT, ""))  # lays the vocabulary out
    sources = [json.dumps(schema) for schema in schemas(NUM_SCHEMAS)]
    compile_us: list[float] = []
    grammars: list[Grammar] = []
    for source in sources:
        began = time.perf_counter()
        grammars.append(compiler(Constraint(ConstraintKind.JSON_SCHEMA, source)))
        compile_us.append((time.perf_counter() - began) * 1e6)
    mask_us = [
        taken for index, grammar in enumerate(grammars) for taken in _walk(grammar, index, vocabulary.eos_token_ids)
    ]
    return {"compile_us": _percentiles(compile_us), "token_us": _percentiles(mask_us), "num_tokens": len(mask_us)}


def _walk(grammar: Grammar, seed: int, ends: Sequence[int]) -> Iterator[float]:
    """Microseconds to take in each token and work out the mask of the next."""
    chance, matcher, tokens = random.Random(seed), grammar.start(), list[int]()
    bits = np.zeros(num_words(grammar.vocab_size), np.int32)
    for _ in range(500):
        began = time.perf_counter()
        why = matcher.follow(tokens[-1:], bits)
        yield (time.perf_counter() - began) * 1e6
        assert not why
        following = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist()
        tokens.append(chance.choice(following))
        if tokens[-1] in ends:
            return


def neighbours() -> dict[str, object]:
    """Tokens a second of the plain requests beside free and beside constrained neighbours, in alternating rounds."""
    settings: Settings = {"gateway": {"listen": "127.0.0.1:0", "drain_s": 1.0}, "links": {"death_s": 60.0}}
    rates: dict[str, list[float]] = {"free": [], "constrained": []}
    with server(settings, "--log-level", "warning") as process:
        with grpc.insecure_channel(process.wait_ready()) as channel:
            stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]
            for turn in range(1 + ROUNDS):
                for name in list(rates)[:: 1 if turn % 2 else -1]:
                    with _beside(stub, name == "constrained"):
                        rates[name].append(_plain_rate(stub))
        process.stop()
    settled = {name: taken[1:] for name, taken in rates.items()}  # the first turn compiles and fills caches
    medians = {name: statistics.median(taken) for name, taken in settled.items()}
    ratios = [after / before for before, after in zip(settled["free"], settled["constrained"], strict=True)]
    return {"tokens_per_s": medians, "ratio": statistics.median(ratios), "ratios": sorted(ratios)}


@contextmanager
def _beside(stub: Any, is_constrained: bool) -> Iterator[None]:
    """Neighbours that have begun, and have not ended when the block is left."""
    sampling = {"json_schema": json.dumps(ENDLESS)} if is_constrained else {}
    streams = [stub.StreamGenerate(_request(NEIGHBOUR_TOKENS, seed, **sampling)) for seed in range(NUM_PLAIN)]
    for stream in streams:
        next(stream)
    yield
    for stream in streams:
        assert not stream.done(), "a neighbour ended too early"
        stream.cancel()


def _plain_rate(stub: Any) -> float:
    """Tokens a second of plain requests that come at once."""
    wanted = [_request(PLAIN_TOKENS, 100 + seed) for seed in range(NUM_PLAIN)]
    with ThreadPoolExecutor(NUM_PLAIN) as pool:
        began = time.perf_counter()
        replies = list(pool.map(lambda one: stub.Generate(one, timeout=CALL_S), wanted))
    num_tokens: int = sum(reply.usage.completion_tokens for reply in replies)
    return num_tokens / (time.perf_counter() - began)


def _request(max_tokens: int, seed: int, **sampling: Any) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        text=f"List number {seed}: ",
        sampling=common_pb2.Sampling(seed=seed, **sampling),
        stopping=common_pb2.Stopping(max_tokens=max_tokens, ignore_eos=True),
    )


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {name: ordered[min(len(ordered) - 1, int(len(ordered) * at))] for name, at in PERCENTILES.items()}
