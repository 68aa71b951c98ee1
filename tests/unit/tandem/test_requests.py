"""Requests from keyword arguments: each option in its place, and what the wire cannot carry refused by name."""

from typing import Any

import grpc
import pytest

from tandem import errors, requests


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"top_k": 2**31}, "top_k"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop": ["\ud800"]}, "stop"),
        ({"tenant": "\ud83d"}, "tenant"),
    ],
)
def test_what_the_wire_cannot_carry_is_named(options: Any, field: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        requests.generate_request("x", options)
    assert list(caught.value.fields) == [field]
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_prompts_and_roles_that_the_wire_cannot_carry_are_named() -> None:
    for prompt in ("\ud83d", [-1]):
        with pytest.raises(errors.InvalidRequest):
            requests.generate_request(prompt, {})
    with pytest.raises(errors.InvalidRequest) as caught:
        requests.chat_request([{"role": "wizard", "content": "x"}], {})
    assert list(caught.value.fields) == ["messages.role"]


def test_options_go_where_they_belong_and_absent_ones_stay_absent() -> None:
    request = requests.generate_request("x", {"temperature": 0.0, "max_tokens": None, "tenant": "t", "logprobs": 0})
    assert request.sampling.HasField("temperature") and not request.HasField("stopping")
    assert (request.tenant, request.output.logprobs, request.output.HasField("logprobs")) == ("t", 0, True)
    assert not request.HasField("request_id")


def test_an_option_that_does_not_exist_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match="temprature"):
        requests.generate_request("x", {"temprature": 1.0})  # type: ignore[typeddict-unknown-key]
