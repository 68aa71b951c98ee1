"""Structured output of the real model through gRPC: what ended is what was asked for, whoever runs beside it."""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import jsonschema
import pytest

from tandem.v1 import common_pb2, inference_pb2
from tests.e2e.processes import Settings
from tests.e2e.schemas import Schema, schemas
from tests.e2e.serving import Serving, serving
from tests.e2e.text_client import inference

SETTINGS: Settings = {
    "executor": {"num_threads": 1, "num_blocks": 400, "max_restarts": 1},
    "gateway": {"listen": "127.0.0.1:0"},
    "links": {"death_s": 60.0},
}
CALL_S = 280.0
STOP, LENGTH = common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH
CHOICES = ["ja", "nein", "weiß nicht 🤷"]
MISSING = "\x04"  # a byte that has no token in the default model's vocabulary


@pytest.fixture(scope="module")
def real() -> Iterator[Serving]:
    with serving(SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def channel(real: Serving) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(real.address) as channel:
        yield channel


def request(
    text: str = "Answer: ", *, max_tokens: int = 40, seed: int = 1, **asks: Any
) -> inference_pb2.GenerateRequest:
    stopping = {name: asks.pop(name) for name in ("ignore_eos", "min_tokens", "stop") if name in asks}
    return inference_pb2.GenerateRequest(
        text=text,
        sampling=common_pb2.Sampling(seed=seed, **asks),
        stopping=common_pb2.Stopping(max_tokens=max_tokens, **stopping),
    )


def generate(channel: grpc.Channel, wanted: inference_pb2.GenerateRequest) -> Any:
    return inference(channel).Generate(wanted, timeout=CALL_S)


def valid_answers(channel: grpc.Channel, wanted: list[Schema], max_tokens: int) -> int:
    """Ask for an instance of each at concurrency 16; how many ended. Each of these must be valid."""

    def ask(index: int) -> bool:
        text = f"Form number {index}, filled in as JSON: "
        temperature = (0.0, 0.7, 1.2)[index % 3]
        schema = json.dumps(wanted[index])
        reply = generate(
            channel, request(text, max_tokens=max_tokens, seed=index, temperature=temperature, json_schema=schema)
        )
        (completion,) = reply.completions
        if completion.finish.reason == STOP:
            checker = jsonschema.FormatChecker()
            jsonschema.validate(json.loads(completion.text), wanted[index], format_checker=checker)
        return bool(completion.finish.reason == STOP)

    with ThreadPoolExecutor(16) as pool:
        return sum(pool.map(ask, range(len(wanted))))


def test_what_ended_is_valid(channel: grpc.Channel) -> None:
    assert valid_answers(channel, schemas(6, seed=1), max_tokens=120) >= 4


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_two_hundred_schemas(channel: grpc.Channel) -> None:
    num_ended = valid_answers(channel, schemas(200), max_tokens=400)
    print(f"200 schemas at concurrency 16: {num_ended} ended, all valid")
    assert num_ended >= 195


@pytest.mark.parametrize(
    ("asks", "is_right"),
    [
        ({"regex": "[0-9]{2}-(a|b)[a-z]"}, lambda text: re.fullmatch("[0-9]{2}-(a|b)[a-z]", text)),
        (
            {"choice": common_pb2.Choices(texts=["ja", "nein", "weiß nicht 🤷"])},
            ["ja", "nein", "weiß nicht 🤷"].__contains__,
        ),
        ({"grammar": 'start: "a" ("," "a")~3'}, "a,a,a,a".__eq__),
        ({"grammar": 'root ::= "(" root ")" | "x"', "temperature": 0.0}, lambda text: re.fullmatch(r"\(*x\)*", text)),
        ({"json_schema": '{"enum": [17, "x"]}', "n": 3}, lambda text: json.loads(text) in (17, "x")),
        ({"regex": "a{1,9}", "ignore_eos": True}, "aaaaaaaaa".__eq__),
        ({"regex": "a{1,9}", "min_tokens": 30}, "aaaaaaaaa".__eq__),
        ({"regex": "[ab]{40}", "stop": ["aa", "bb"]}, lambda text: re.fullmatch("(a?(ba)*b?)", text)),
    ],
)
def test_every_kind_of_constraint(channel: grpc.Channel, asks: dict[str, Any], is_right: Callable[[str], Any]) -> None:
    reply = generate(channel, request(**asks))
    assert len(reply.completions) == asks.get("n", 1)
    for completion in reply.completions:
        assert completion.finish.reason == STOP and is_right(completion.text), completion.text


def test_an_answer_cut_short_is_the_beginning_of_one(channel: grpc.Channel) -> None:
    (completion,) = generate(channel, request(max_tokens=7, regex="[ab]{60}")).completions
    assert completion.finish.reason == LENGTH and re.fullmatch("[ab]+", completion.text)


@pytest.mark.parametrize(
    ("asks", "field", "why"),
    [
        ({"json_schema": '{"type": "objekt"}'}, "sampling.json_schema", "objekt"),
        ({"regex": "(a"}, "sampling.regex", "unclosed group"),
        ({"grammar": "start: other"}, "sampling.grammar", "other"),
    ],
)
def test_what_does_not_compile_names_its_field(channel: grpc.Channel, asks: Any, field: str, why: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        generate(channel, request(**asks))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value.details()).startswith(f"{field}: ") and why in str(caught.value.details())


def test_a_dead_end_is_a_failed_precondition_of_its_own_call_alone(channel: grpc.Channel) -> None:
    plain = inference(channel).Generate.future(request(temperature=0.0, max_tokens=12), timeout=CALL_S)
    with pytest.raises(grpc.RpcError) as caught:
        generate(channel, request(regex=f"(a|b)[{MISSING}\x06]"))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "no token may follow" in str(caught.value.details())
    assert plain.result().completions[0].text


def test_the_same_alone_and_among_others(channel: grpc.Channel) -> None:
    """Greedy in float32: neighbours change no token of a constrained answer, nor the other way round."""
    schema = json.dumps(schemas(1, seed=9)[0])
    wanted = [
        request("Seven words: ", temperature=0.0, max_tokens=10),
        request("The form: ", temperature=0.0, json_schema=schema, max_tokens=24),
        request("A number: ", temperature=0.0, regex="[1-9][0-9]{3}"),
    ]
    alone = [generate(channel, one).completions[0].text for one in wanted]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda one: generate(channel, one).completions[0].text, wanted))
    assert together == alone


@pytest.mark.soak
def test_a_constrained_answer_survives_the_death_of_an_executor(real: Serving, channel: grpc.Channel) -> None:
    wanted = request("Letters: ", temperature=0.0, regex="([ab]{3},){12}c", max_tokens=80)
    whole = generate(channel, wanted).completions[0].text
    stream = inference(channel).StreamGenerate(wanted, timeout=CALL_S)
    text = next(stream).text
    real.process.services()["executor"].kill()
    text += "".join(chunk.text for chunk in stream)
    assert text == whole and re.fullmatch("([ab]{3},){12}c", text)


def test_backends_without_a_model_judge_a_constraint_and_do_not_follow_it(echo: Serving) -> None:
    with grpc.insecure_channel(echo.address) as channel:
        (completion,) = generate(channel, request("the prompt itself", max_tokens=2, regex="[0-9]+")).completions
        assert "the prompt itself".startswith(completion.text)
        with pytest.raises(grpc.RpcError) as caught:
            generate(channel, request(regex="(a"))
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
