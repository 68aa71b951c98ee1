"""Penalties, biases, masks and constraints: what was asked for arrives, in tokens, and nothing else does."""

import json
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from gateway.admission import Admission
from gateway.errors import CallError
from services.runtime.settings import GatewaySettings
from services.tokenizer import Tokenizer
from services.wire import columns
from services.wire.messages import Constraint, ConstraintKind, Sampling
from tandem.v1 import common_pb2
from tandem.v1 import inference_pb2 as pb
from tests.unit.gateway.rig import CARD
from tests.unit.tokenizer.conftest import small_vocabulary


@pytest.fixture(scope="module")
def rules(tokenizer: Tokenizer) -> Admission:
    return Admission(CARD, tokenizer, GatewaySettings())


def read(rules: Admission, stopping: common_pb2.Stopping | None = None, **fields: Any) -> Sampling:
    request = pb.GenerateRequest(text="x", sampling=common_pb2.Sampling(**fields), stopping=stopping)
    return rules.terms(request).sampling


def refused(rules: Admission, stopping: common_pb2.Stopping | None = None, **fields: Any) -> list[str]:
    with pytest.raises(CallError) as caught:
        read(rules, stopping, **fields)
    return [violation.field for violation in caught.value.violations]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("repetition_penalty", (0.01, 0.5, 1.0, 1.3, 100.0)),
        ("presence_penalty", (-2.0, -1.0, 0.0, 2.0)),
        ("frequency_penalty", (-2.0, -0.25, 0.0, 2.0)),
    ],
)
def test_penalties_arrive_as_they_are(rules: Admission, name: str, values: tuple[float, ...]) -> None:
    for value in values:
        fields: dict[str, Any] = {name: value}
        assert getattr(read(rules, **fields), name) == value


def test_biases_arrive_by_id_and_zero_is_none(rules: Admission) -> None:
    sampling = read(rules, logit_bias={49151: -100.0, 5: 2.5, 7: 0.0, 0: 100.0})
    assert columns.unpack(sampling.bias_token_ids).tolist() == [0, 5, 49151]
    assert columns.unpack_floats(sampling.bias_values).tolist() == [100.0, 2.5, -100.0]


def test_allowed_ids_arrive_once_each(rules: Admission) -> None:
    sampling = read(rules, allowed_token_ids=[9, 5, 9, 49151])
    assert columns.unpack(sampling.allowed_token_ids).tolist() == [5, 9, 49151]


def test_something_must_be_left_to_draw(rules: Admission) -> None:
    early = common_pb2.Stopping(min_tokens=1, stop_token_ids=[7])
    assert refused(rules, early, allowed_token_ids=[2, 7]) == ["sampling.allowed_token_ids"]
    assert read(rules, early, allowed_token_ids=[2, 7, 8]).allowed_token_ids == columns.pack([2, 7, 8])
    # Without min_tokens an answer may be its end alone.
    assert read(rules, allowed_token_ids=[2]).allowed_token_ids == columns.pack([2])


def words(rules: Admission, *bad_words: str) -> list[list[int]]:
    return [columns.unpack(word).tolist() for word in read(rules, bad_words=bad_words).bad_words]


def test_a_bad_word_is_forbidden_as_it_stands_and_behind_a_space(rules: Admission, tokenizer: Tokenizer) -> None:
    bare, spaced = tokenizer.encode("Paris", False), tokenizer.encode(" Paris", False)
    assert bare != spaced
    assert words(rules, "Paris") == [bare, spaced]
    assert words(rules, "Paris", "Paris") == [bare, spaced]


def test_a_spelling_that_ends_like_another_is_one(rules: Admission, tokenizer: Tokenizer) -> None:
    # A digit is a token of its own, whatever stands before it.
    assert tokenizer.encode(" 7", False)[-1:] == tokenizer.encode("7", False)
    assert words(rules, "7") == [tokenizer.encode("7", False)]


def test_a_bad_word_that_is_a_special_token_is_that_token(rules: Admission) -> None:
    assert words(rules, "<|im_start|>") == [[1]]
    assert len(words(rules, "<|im_start|> ")[0]) > 1


def test_no_constraint_is_none(rules: Admission) -> None:
    assert read(rules).constraint is None
    assert read(rules, json_object=False).constraint is None


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"json_schema": ' {"type": "object"} '}, Constraint(ConstraintKind.JSON_SCHEMA, ' {"type": "object"} ')),
        ({"json_schema": "true"}, Constraint(ConstraintKind.JSON_SCHEMA, "true")),
        ({"json_object": True}, Constraint(ConstraintKind.JSON_OBJECT, "")),
        ({"regex": "a+"}, Constraint(ConstraintKind.REGEX, "a+")),
        ({"grammar": 'start: "a"'}, Constraint(ConstraintKind.GRAMMAR, 'start: "a"')),
    ],
)
def test_constraints_arrive_word_by_word(rules: Admission, fields: dict[str, Any], constraint: Constraint) -> None:
    assert read(rules, **fields).constraint == constraint


def test_a_choice_is_a_list_of_texts(rules: Admission) -> None:
    texts = ["ja", 'n"ein\n', "ä"]
    constraint = read(rules, choice=common_pb2.Choices(texts=texts)).constraint
    assert constraint is not None and constraint.kind is ConstraintKind.CHOICE
    assert json.loads(constraint.source) == texts


def test_bounds_are_inclusive(tokenizer: Tokenizer) -> None:
    settings = GatewaySettings(
        max_logit_bias=2, max_allowed_token_ids=2, max_bad_words=2, max_bad_word_chars=3, max_constraint_bytes=4
    )
    rules = Admission(CARD, tokenizer, settings)
    sampling = read(rules, logit_bias={1: 1.0, 2: 1.0}, allowed_token_ids=[1, 1], bad_words=["abc", "ü"], regex="aaaa")
    assert len(sampling.bad_words) == 4 and sampling.constraint is not None
    too_much: dict[str, Any] = {
        "logit_bias": {1: 1.0, 2: 1.0, 3: 0.0},
        "allowed_token_ids": [1] * 3,
        "bad_words": ["a"] * 3,
        "regex": "aaaaa",
    }
    assert refused(rules, **too_much) == [
        "sampling.logit_bias",
        "sampling.bad_words",
        "sampling.allowed_token_ids",
        "sampling.regex",
    ]
    assert refused(rules, bad_words=["abcd"]) == ["sampling.bad_words[0]"]


def test_echo_scores_the_prompt_like_the_output(rules: Admission) -> None:
    def scored(**output: Any) -> tuple[int | None, int | None]:
        sampling = rules.terms(pb.GenerateRequest(text="x", output=common_pb2.Output(**output))).sampling
        return sampling.logprobs, sampling.prompt_logprobs

    assert scored() == (None, None)
    assert scored(logprobs=3) == (3, None)
    assert scored(prompt_logprobs=0) == (None, 0)
    assert scored(echo=True, logprobs=3) == (3, 3)
    assert scored(echo=True, logprobs=3, prompt_logprobs=5) == (3, 5)
    assert scored(echo=True, prompt_logprobs=2) == (None, 2)


class TestAdvisedSampling:
    """What the model's makers advise: only where the settings say so, and never against what a request says."""

    ADVICE: ClassVar = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.05}

    def rules(self, is_followed: bool) -> Admission:
        tokenizer = Tokenizer(replace(small_vocabulary(["<s>"]), sampling=self.ADVICE))
        return Admission(CARD, tokenizer, GatewaySettings(model_defaults=is_followed))

    def test_it_fills_what_is_absent(self) -> None:
        got = read(self.rules(is_followed=True))
        assert {name: getattr(got, name) for name in self.ADVICE} == self.ADVICE

    def test_it_never_wins(self) -> None:
        asked: dict[str, Any] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
        got = read(self.rules(is_followed=True), **asked)
        assert {name: getattr(got, name) for name in asked} == asked

    def test_it_is_not_asked_unless_the_settings_say_so(self) -> None:
        assert read(self.rules(is_followed=False)) == Sampling()
