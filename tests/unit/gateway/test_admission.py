"""Admission: absent is the default, zero is a value, and what is accepted arrives as it was meant."""

import dataclasses
from typing import Any

import pytest

from gateway.admission import Admission
from gateway.errors import CallError
from gateway.sampling import MIN_NORMAL_FLOAT32
from services.runtime.settings import GatewaySettings
from services.wire import columns
from services.wire.messages import Identity, Output, Sampling, Stopping, Submit
from tandem.v1 import chat_pb2, common_pb2
from tandem.v1 import inference_pb2 as pb
from tests.unit.gateway.rig import CARD

SPECIALS = {"<|endoftext|>": 0, "<|im_end|>": 2}
IDENTITY = Identity("gateway-0", "r", 1)


class Spelled:
    """Spells texts in tokens: one a letter, and one for a space with the letter behind it."""

    @property
    def advised_sampling(self) -> dict[str, float]:
        return {}

    def special_id(self, text: str) -> int | None:
        return SPECIALS.get(text)

    def encode(self, text: str, parse_special: bool) -> list[int]:
        assert not parse_special
        pieces = text.replace(" ", "|").replace("|", " |").split(" ")
        return [1000 + ord(piece[-1]) if "|" in piece else ord(c) for piece in pieces for c in piece[-1:]]


def admission(**settings: Any) -> Admission:
    return Admission(CARD, Spelled(), GatewaySettings(**settings), mint_seed=lambda: 4711)


def admit(prompt: list[int] | None = None, remaining_ms: int | None = None, **fields: Any) -> Submit:
    rules = admission()
    terms = rules.terms(pb.GenerateRequest(**fields))
    return rules.submit(terms, IDENTITY, prompt or [5, 6], remaining_ms)


def test_a_bare_request_gets_the_documented_defaults() -> None:
    assert admit(text="x") == Submit(
        identity=IDENTITY,
        prompt_tokens=columns.pack([5, 6]),
        sampling=Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, logprobs=None),
        stopping=Stopping(max_tokens=None, min_tokens=0, stop_token_ids=columns.pack([2])),
        output=Output(skip_special_tokens=True, logprobs=False),
        seed=4711,
        n=1,
        priority=0,
        tenant="",
        remaining_ms=None,
    )


def test_every_knob_arrives() -> None:
    submit = admit(
        [1, 2, 3],
        remaining_ms=1500,
        text="x",
        sampling=common_pb2.Sampling(temperature=0.7, top_p=0.9, top_k=40, min_p=0.1, seed=2**64 - 1, n=3),
        stopping=common_pb2.Stopping(
            max_tokens=9, min_tokens=2, stop=["b", "a", "b"], stop_token_ids=[8, 7], include_stop=True
        ),
        output=common_pb2.Output(logprobs=0, return_token_ids=True, skip_special_tokens=False),
        priority=-3,
        tenant="Zoë",
    )
    stops = columns.pack([2, 7, 8])
    assert submit == Submit(
        identity=IDENTITY,
        prompt_tokens=columns.pack([1, 2, 3]),
        sampling=Sampling(
            temperature=0.7, top_k=40, top_p=0.9, min_p=0.1, logprobs=0, min_tokens=2, stop_token_ids=stops
        ),
        stopping=Stopping(max_tokens=9, min_tokens=2, stop_token_ids=stops, stop_strings=("b", "a"), include_stop=True),
        output=Output(skip_special_tokens=False, logprobs=True),
        seed=2**64 - 1,
        n=3,
        priority=-3,
        tenant="Zoë",
        remaining_ms=1500,
    )


def test_chat_has_the_same_knobs() -> None:
    request = chat_pb2.ChatRequest(sampling=common_pb2.Sampling(temperature=0), tenant="t", priority=5)
    terms = admission().terms(request)
    assert (terms.sampling.temperature, terms.tenant, terms.priority) == (0.0, "t", 5)


def test_explicit_zeros_are_values() -> None:
    submit = admit(
        text="x",
        sampling=common_pb2.Sampling(temperature=0, top_k=0, min_p=0, seed=0),
        stopping=common_pb2.Stopping(min_tokens=0, ignore_eos=False, include_stop=False),
        output=common_pb2.Output(logprobs=0, skip_special_tokens=False),
    )
    assert submit.sampling == Sampling(temperature=0.0, logprobs=0)
    assert submit.seed == 0
    assert submit.output == Output(skip_special_tokens=False, logprobs=True)


@pytest.mark.parametrize(("given", "meant"), [(-1, 0), (0, 0), (1, 1), (49151, 49151), (49152, 0), (2**31 - 1, 0)])
def test_top_k_off_and_beyond_the_vocabulary_are_the_same(given: int, meant: int) -> None:
    assert admit(text="x", sampling=common_pb2.Sampling(top_k=given)).sampling.top_k == meant


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, MIN_NORMAL_FLOAT32 / 2])
def test_a_temperature_that_float32_cannot_divide_by_is_greedy(temperature: float) -> None:
    assert admit(text="x", sampling=common_pb2.Sampling(temperature=temperature)).sampling.temperature == 0.0


@pytest.mark.parametrize("temperature", [MIN_NORMAL_FLOAT32, 1e-12, 100.0, 3.4e38])
def test_other_temperatures_are_left_alone(temperature: float) -> None:
    assert admit(text="x", sampling=common_pb2.Sampling(temperature=temperature)).sampling.temperature == temperature


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_every_seed_the_wire_can_say_is_a_seed(seed: int) -> None:
    assert admit(text="x", sampling=common_pb2.Sampling(seed=seed)).seed == seed


def test_minted_seeds_differ() -> None:
    rules = Admission(CARD, Spelled(), GatewaySettings())
    seeds = {rules.terms(pb.GenerateRequest(text="x")).seed for _ in range(8)}
    assert len(seeds) == 8 and all(0 <= seed < 2**53 for seed in seeds)


def test_ignore_eos_takes_the_models_own_ends_away() -> None:
    stopping = common_pb2.Stopping(ignore_eos=True, stop_token_ids=[9])
    assert columns.unpack(admit(text="x", stopping=stopping).stopping.stop_token_ids).tolist() == [9]


def test_a_stop_text_that_is_a_special_token_is_matched_by_its_id_too() -> None:
    stopping = common_pb2.Stopping(ignore_eos=True, stop=["<|im_end|>", "plain", "<|endoftext|> "])
    terms = admission().terms(pb.GenerateRequest(text="x", stopping=stopping))
    assert terms.stopping.stop_strings == ("<|im_end|>", "plain", "<|endoftext|> ")
    assert columns.unpack(terms.stopping.stop_token_ids).tolist() == [2]
    assert terms.stop_texts == {2: "<|im_end|>"}


def test_stop_ids_are_masked_only_where_min_tokens_asks_for_it() -> None:
    assert admit(text="x", stopping=common_pb2.Stopping(stop_token_ids=[9])).sampling.stop_token_ids == b""
    masked = admit(text="x", stopping=common_pb2.Stopping(stop_token_ids=[9], min_tokens=1)).sampling
    assert (masked.min_tokens, masked.stop_token_ids) == (1, columns.pack([2, 9]))


def test_a_nul_is_a_character_like_any_other() -> None:
    assert admit(text="a\x00b", stopping=common_pb2.Stopping(stop=["\x00"])).stopping.stop_strings == ("\x00",)


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "given"),
    [(512, None, 512), (513, None, 513), (511, 2, 513), (1, 512, 513), (500, 2**32 - 1, 500 + 2**32 - 1)],
)
def test_what_exceeds_the_context_is_told_with_both_sizes(
    num_prompt_tokens: int, max_tokens: int | None, given: int
) -> None:
    with pytest.raises(CallError) as caught:
        admit([1] * num_prompt_tokens, text="x", stopping=common_pb2.Stopping(max_tokens=max_tokens))
    assert caught.value.reason_name == "CONTEXT_LENGTH_EXCEEDED"
    assert caught.value.metadata == {"limit": "512", "given": str(given)}


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens"), [(511, None), (511, 1), (1, 511)])
def test_what_just_fits_the_context_is_taken(num_prompt_tokens: int, max_tokens: int | None) -> None:
    submit = admit([1] * num_prompt_tokens, text="x", stopping=common_pb2.Stopping(max_tokens=max_tokens))
    assert submit.stopping.max_tokens == max_tokens


def test_min_tokens_is_held_against_what_the_prompt_leaves() -> None:
    assert admit([1] * 500, text="x", stopping=common_pb2.Stopping(min_tokens=12)).stopping.min_tokens == 12
    with pytest.raises(CallError) as caught:
        admit([1] * 500, text="x", stopping=common_pb2.Stopping(min_tokens=13))
    assert [violation.field for violation in caught.value.violations] == ["stopping.min_tokens"]


@pytest.mark.parametrize("request_id", ["", "a", "A-1_b.c:d/e", "~" * 128])
def test_request_ids_of_printable_ascii_are_kept(request_id: str) -> None:
    assert admission().terms(pb.GenerateRequest(text="x", request_id=request_id)).request_id == request_id


@pytest.mark.parametrize("name", ["", CARD.name])
def test_the_served_model_may_be_named_or_not(name: str) -> None:
    admission().check_model(name)


def test_bounds_are_inclusive() -> None:
    rules = admission(max_stop_strings=2, max_stop_string_chars=3, max_stop_token_ids=2, max_logprobs=4, max_n=5)
    stopping = common_pb2.Stopping(stop=["abc", "äöü"], stop_token_ids=[0, 49151])
    terms = rules.terms(
        pb.GenerateRequest(
            text="x",
            sampling=common_pb2.Sampling(n=5, top_p=1.0, min_p=1.0),
            stopping=stopping,
            output=common_pb2.Output(logprobs=4),
        )
    )
    assert (terms.n, terms.sampling.logprobs, len(terms.stopping.stop_strings)) == (5, 4, 2)


def test_terms_hold_every_field_of_a_submit() -> None:
    """A field that Submit gains must be admitted, or left out knowingly."""
    left_out = {"traceparent", "identity", "prompt_tokens", "remaining_ms"}
    named = {field.name for field in dataclasses.fields(admission().terms(pb.GenerateRequest(text="x")))}
    assert set(Submit.__struct_fields__) - left_out <= named


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        (common_pb2.Sampling(json_schema="{}"), "sampling.json_schema"),
        (common_pb2.Sampling(regex="a"), "sampling.regex"),
        (common_pb2.Sampling(choice=common_pb2.Choices(texts=["a"])), "sampling.choice"),
    ],
)
def test_terms_know_which_field_the_constraint_came_from(sampling: common_pb2.Sampling, field: str) -> None:
    assert admission().terms(pb.GenerateRequest(text="x", sampling=sampling)).constraint_field == field


def test_the_sampler_is_told_of_ignore_eos_since_a_constraint_must_be_able_to_end() -> None:
    assert admit(text="x", stopping=common_pb2.Stopping(ignore_eos=True)).sampling.ignore_eos
    assert not admit(text="x").sampling.ignore_eos
