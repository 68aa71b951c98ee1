"""A VllmEngine request as ours, field by field."""

from typing import Any

import pytest

from gateway.errors import CallError
from tandem.v1 import common_pb2, inference_pb2

pb = pytest.importorskip("smg_grpc_proto.generated.vllm_engine_pb2", reason="needs the package smg-grpc-proto")
requests = pytest.importorskip("gateway.vllm.requests")


def translated(**params: Any) -> inference_pb2.GenerateRequest:
    request = pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=[1, 2, 3]), sampling_params=pb.SamplingParams(**params)
    )
    reply: inference_pb2.GenerateRequest = requests.translated(request, 100)
    return reply


@pytest.mark.parametrize(
    ("params", "sampling"),
    [
        ({}, {}),
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.25}, None),
        ({"top_p": 0.0, "top_k": 0, "min_p": 0.0, "n": 0, "repetition_penalty": 0.0}, {}),
        ({"top_k": 2**32 - 1}, {"top_k": 2**31 - 1}),
        ({"n": 3, "seed": 7}, None),
        ({"seed": 0}, None),
        ({"seed": -1}, {"seed": 2**64 - 1}),
        ({"repetition_penalty": 1.5, "presence_penalty": -0.5, "frequency_penalty": 0.25}, None),
        ({"logit_bias": {5: -100.0, 6: 2.0}}, None),
        ({"json_schema": "{}"}, None),
        ({"json_object": True}, None),
        ({"regex": "a+"}, None),
        ({"grammar": "start: A"}, None),
        ({"choice": pb.ChoiceConstraint(choices=["a", "b"])}, {"choice": common_pb2.Choices(texts=["a", "b"])}),
    ],
)
def test_sampling(params: dict[str, Any], sampling: dict[str, Any] | None) -> None:
    """None: the same words here as there."""
    assert translated(**params).sampling == common_pb2.Sampling(**params if sampling is None else sampling)


@pytest.mark.parametrize(
    ("params", "stopping"),
    [
        ({}, {}),
        ({"max_tokens": 5, "min_tokens": 2}, None),
        ({"max_tokens": 0}, {"max_tokens": 0}),
        ({"max_tokens": 4096}, {"max_tokens": 97}),
        ({"stop": ["a"], "stop_token_ids": [7], "ignore_eos": True}, None),
        ({"include_stop_str_in_output": True}, {"include_stop": True}),
    ],
)
def test_stopping(params: dict[str, Any], stopping: dict[str, Any] | None) -> None:
    assert translated(**params).stopping == common_pb2.Stopping(**params if stopping is None else stopping)


def test_output_and_prompt() -> None:
    request = translated(logprobs=3, prompt_logprobs=0, skip_special_tokens=True)
    assert request.output == common_pb2.Output(logprobs=3, prompt_logprobs=0, skip_special_tokens=True)
    assert list(request.token_ids.ids) == [1, 2, 3]
    text = requests.translated(pb.GenerateRequest(request_id="r", text="hi"), 100)
    assert (text.request_id, text.text) == ("r", "hi")


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"logprobs": -1}, "sampling_params.logprobs"),
        ({"prompt_logprobs": -1}, "sampling_params.prompt_logprobs"),
        ({"truncate_prompt_tokens": -2}, "sampling_params.truncate_prompt_tokens"),
        ({"logit_bias": {-1: 1.0}}, "sampling_params.logit_bias"),
        ({"structural_tag": "x"}, "sampling_params.structural_tag"),
    ],
)
def test_what_cannot_be_said_here_is_named(params: dict[str, Any], field: str) -> None:
    with pytest.raises(CallError) as caught:
        translated(**params)
    assert [violation.field for violation in caught.value.violations] == [field]


@pytest.mark.parametrize(("given", "kept"), [(5, 5), (-1, 99)])
def test_a_prompt_may_be_truncated(given: int, kept: int) -> None:
    assert translated(truncate_prompt_tokens=given).truncate_prompt_tokens == kept


@pytest.mark.parametrize(("given", "left"), [(5, 95), (60, 40), (-1, 1), (None, 1)])
def test_what_is_cut_from_a_prompt_is_room_for_the_output(given: int | None, left: int) -> None:
    request = pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=[7] * 1000),
        sampling_params=pb.SamplingParams(truncate_prompt_tokens=given, max_tokens=500),
    )
    assert requests.translated(request, 100).stopping.max_tokens == left
