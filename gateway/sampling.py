"""How tokens are drawn, from the public Sampling to the wire's: ranges, ids, words as tokens, the constraint.

Defaults and ranges are those of proto/tandem/v1/common.proto. Pure: knows the model card, how words are spelled in
tokens, and the gateway's bounds; knows no call and no link. Invariant: every id is inside the vocabulary, every number
is finite and fits float32, and what the masks leave is not empty.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from gateway.constraints import read_constraint
from gateway.errors import Violation
from gateway.fields import ABOVE_ZERO_TO_ONE, ZERO_TO_ONE, Fields, Range, between
from services.runtime.settings import GatewaySettings
from services.wire import columns
from services.wire.messages import Constraint, ModelCard, Sampling, Stopping
from tandem.v1 import common_pb2

# The sampler computes in float32: what it cannot hold is out of range, what it cannot divide by is greedy's own limit.
MAX_FLOAT32 = 3.4028234663852886e38
MIN_NORMAL_FLOAT32 = 1.1754943508222875e-38
TEMPERATURE = Range(0.0, MAX_FLOAT32, f">= 0 and <= {MAX_FLOAT32:.4g}")
DEFAULT_TEMPERATURE = 1.0
TOP_K = Range(-1, math.inf, ">= -1")
# Beyond a factor of 100 either way nothing is left of a logit, and at zero nothing at all.
REPETITION_PENALTY = Range(0.01, 100.0, ">= 0.01 and <= 100")
PENALTY = Range(-2.0, 2.0, ">= -2 and <= 2")
BIAS = Range(-100.0, 100.0, ">= -100 and <= 100")


class Spelling(Protocol):
    """How texts are spelled in tokens, and the sampling that suits the model: what admission needs of a Tokenizer."""

    @property
    def advised_sampling(self) -> Mapping[str, float]:
        """Values by field of Sampling."""

    def special_id(self, text: str) -> int | None:
        """The special token that is spelled exactly so."""

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """The ids of a text by itself; raises TextError for lone surrogates."""


class SamplingRules:
    """Reads the Sampling of requests for one model. Violations are noted where they are found, not raised."""

    def __init__(self, card: ModelCard, spelling: Spelling, settings: GatewaySettings) -> None:
        self._vocab_size = card.vocab_size
        self._spelling = spelling
        self._settings = settings
        self._num_sequences = between(1, settings.max_n)
        self._advised = spelling.advised_sampling if settings.model_defaults else {}

    def num_sequences(self, fields: Fields) -> int:
        """The n of a request."""
        return fields.integer("n", self._num_sequences) or 1

    def read(self, message: common_pb2.Sampling, stopping: Stopping, violations: list[Violation]) -> Sampling:
        """All but logprobs, which Output asks for."""
        fields = Fields(message, "sampling", violations)
        advised = self._advised
        temperature = fields.real("temperature", advised.get("temperature", DEFAULT_TEMPERATURE), TEMPERATURE)
        asked_top_k = fields.integer("top_k", TOP_K)
        top_k = int(advised.get("top_k", 0)) if asked_top_k is None else asked_top_k
        biases = self._biases(message, fields)
        masked = columns.unpack(stopping.stop_token_ids) if stopping.min_tokens else ()
        bad_words = self._bad_words(message.bad_words, fields)
        return Sampling(
            temperature=temperature if temperature >= MIN_NORMAL_FLOAT32 else 0.0,
            top_k=top_k if 0 < top_k < self._vocab_size else 0,
            top_p=fields.real("top_p", advised.get("top_p", 1.0), ABOVE_ZERO_TO_ONE),
            min_p=fields.real("min_p", advised.get("min_p", 0.0), ZERO_TO_ONE),
            min_tokens=stopping.min_tokens,
            stop_token_ids=columns.pack(masked),
            repetition_penalty=fields.real(
                "repetition_penalty", advised.get("repetition_penalty", 1.0), REPETITION_PENALTY
            ),
            presence_penalty=fields.real("presence_penalty", 0.0, PENALTY),
            frequency_penalty=fields.real("frequency_penalty", 0.0, PENALTY),
            bias_token_ids=columns.pack([token_id for token_id, _ in biases]),
            bias_values=columns.pack_floats([value for _, value in biases]),
            allowed_token_ids=self._allowed(fields, {*masked, *(word[0] for word in bad_words if len(word) == 1)}),
            bad_words=tuple(columns.pack(word) for word in bad_words),
            constraint=self._constraint(message, fields),
        )

    def _biases(self, message: common_pb2.Sampling, fields: Fields) -> list[tuple[int, float]]:
        """By id, rising; a bias of zero is none."""
        if not fields.count("logit_bias", self._settings.max_logit_bias):
            return []
        biases = sorted(message.logit_bias.items())
        for token_id, value in biases:
            name = f"logit_bias[{token_id}]"
            if token_id >= self._vocab_size:
                fields.wrong(name, f"must be for a token id < {self._vocab_size}")
            elif not BIAS.holds(value):
                fields.wrong(name, f"must be {BIAS.text}, is {value}")
            else:
                continue
            return []
        return [(token_id, value) for token_id, value in biases if value]

    def _allowed(self, fields: Fields, forbidden: Collection[int]) -> bytes:
        """The allowed ids as a column, each once, rising; something must be left when the forbidden are taken away."""
        if not fields.count("allowed_token_ids", self._settings.max_allowed_token_ids):
            return columns.EMPTY
        ids = sorted(set(fields.token_ids("allowed_token_ids", self._vocab_size)))
        if ids and all(token_id in forbidden for token_id in ids):
            fields.wrong("allowed_token_ids", "must leave a token that min_tokens and bad_words do not forbid")
        return columns.pack(ids)

    def _bad_words(self, words: Sequence[str], fields: Fields) -> list[Sequence[int]]:
        """Every way to spell each word in tokens, each once."""
        if not fields.count("bad_words", self._settings.max_bad_words):
            return []
        spelled: dict[tuple[int, ...], None] = {}
        bound = between(1, self._settings.max_bad_word_chars)
        for index, word in enumerate(words):
            if not bound.holds(len(word)):
                fields.wrong(f"bad_words[{index}]", f"must have {bound.text} characters, has {len(word)}")
                return []
            spellings = self._spellings(word)
            if not spellings:
                fields.wrong(f"bad_words[{index}]", "must have at least one token, has none")
                return []
            spelled.update(dict.fromkeys(spellings))
        return list(spelled)

    def _spellings(self, word: str) -> list[tuple[int, ...]]:
        """A word at the beginning of a text, and behind a space unless that is the same tokens behind a space's own."""
        special = self._spelling.special_id(word)
        if special is not None:
            return [(special,)]
        bare = tuple(self._spelling.encode(word, parse_special=False))
        if not bare:
            return []
        spaced = tuple(self._spelling.encode(f" {word}", parse_special=False))
        return [bare] if spaced[-len(bare) :] == bare else [bare, spaced]

    def _constraint(self, message: common_pb2.Sampling, fields: Fields) -> Constraint | None:
        return read_constraint(message, fields, self._settings)
