"""What changes scores before a token is chosen: penalties, then biases, then everything that may not be drawn.

Works in place on the rows that ask for it. Penalties and bad words read the History, which already holds the token
that the step before sampled. Repetition divides a positive logit and multiplies a negative one (Keskar et al., CTRL,
2019) for every token of prompt and output; frequency subtracts for each time a token was put out, presence once if it
was. Penalties and biases keep scores finite; a ban is minus infinity, so no later edit can lift it.
"""

from dataclasses import dataclass

import numpy as np

from services.executor.batch import F32, I32, I64, Mask
from services.executor.history import History
from services.executor.masks import TokenMasks
from services.executor.scores import BANNED, PLAIN, ScoreOperations
from services.executor.slots import read_column
from services.wire.messages import Sampling

_LARGEST = float(np.finfo(np.float32).max)
_ANYTHING = -1  # in a prefix: any token, or none, may stand there
_NOTHING = -2  # what stands before a history's first token


@dataclass(frozen=True, slots=True)
class SlotEdits:
    """What one sampling asks for, decoded. penalties: repetition, presence, frequency, or None.

    A bad word bans its last token where the tokens before it are the last known ones. prefixes: [words, longest - 1],
    what stands before each last token, filled up with _ANYTHING from the left.
    """

    penalties: tuple[float, float, float] | None
    bias_ids: I64
    bias_values: F32
    allowed: I64 | None
    min_tokens: int
    stop_ids: I64  # banned until min_tokens outputs are drawn
    prefixes: I32
    lasts: I64

    @classmethod
    def of(cls, sampling: Sampling) -> "SlotEdits | None":
        """None for a sampling that leaves all scores as they are."""
        penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        has_minimum = bool(sampling.min_tokens and sampling.stop_token_ids)
        is_penalized = penalties != (1.0, 0.0, 0.0)
        others = sampling.bias_token_ids, sampling.allowed_token_ids, sampling.bad_words
        if not (is_penalized or has_minimum or any(others)):
            return None
        words = [read_column(word) for word in sampling.bad_words]
        prefixes = np.full((len(words), max(map(len, words), default=1) - 1), _ANYTHING, np.int32)
        for index, word in enumerate(words):
            prefixes[index, prefixes.shape[1] - len(word) + 1 :] = word[:-1]
        return cls(
            penalties=penalties if is_penalized else None,
            bias_ids=_ids(sampling.bias_token_ids),
            bias_values=np.frombuffer(sampling.bias_values, "<f4"),
            allowed=_ids(sampling.allowed_token_ids) if sampling.allowed_token_ids else None,
            min_tokens=sampling.min_tokens if has_minimum else 0,
            stop_ids=_ids(sampling.stop_token_ids),
            prefixes=prefixes,
            lasts=np.array([word[-1] for word in words], np.int64),
        )

    def is_due(self, output: int) -> bool:
        """Whether the draw of this output is edited at all."""
        is_lasting = self.penalties is not None or self.allowed is not None or len(self.bias_ids) or len(self.lasts)
        return bool(is_lasting) or output < self.min_tokens


@dataclass(frozen=True, slots=True)
class RowEdits:
    """The edited rows of one step: indices into its sampling rows, rising, and one entry of the rest for each."""

    rows: I64
    slots: I64
    outputs: I64
    asks: tuple[SlotEdits, ...]
    history: History


def edit(scores: F32, edits: RowEdits | None, masks: TokenMasks | None, operations: ScoreOperations = PLAIN) -> None:
    """Change scores [rows, vocab], float32, finite and contiguous, in place."""
    if edits is not None:
        _penalize(scores, edits)
        _bias(scores, edits)
        _ban_words(scores, edits)
        for row, output, asks in zip(edits.rows.tolist(), edits.outputs.tolist(), edits.asks, strict=True):
            if output < asks.min_tokens:
                scores[row, asks.stop_ids] = BANNED
            if asks.allowed is not None:
                _allow_only(scores[row], asks.allowed)
    if masks is not None:
        operations.ban(scores, masks)


def _penalize(scores: F32, edits: RowEdits) -> None:
    chosen = np.array([index for index, asks in enumerate(edits.asks) if asks.penalties is not None], np.int64)
    if not len(chosen):
        return
    numbers = np.array([edits.asks[index].penalties for index in chosen], np.float32)
    repetition, presence, frequency = numbers.T[:, :, None]
    slots = edits.slots[chosen]
    lengths = edits.history.lengths[slots]
    positions = np.arange(lengths.max())
    tokens = edits.history.tokens[slots, : len(positions)]
    exists = positions < lengths[:, None]
    # Past its end a row repeats its first token, whose score comes out the same each time.
    tokens = np.where(exists, tokens, tokens[:, :1])
    flat, vocab_size = scores.reshape(-1), scores.shape[1]
    places = edits.rows[chosen, None] * vocab_size + tokens
    values = flat[places]
    with np.errstate(over="ignore"):  # what leaves float32's range is brought back
        values = np.where(values > 0, values / repetition, values * repetition)
        if numbers[:, 1:].any():
            is_output = exists & (positions >= (lengths - edits.outputs[chosen])[:, None])
            own_places = np.arange(len(tokens))[:, None] * vocab_size + tokens
            counts = _counts(own_places, is_output, edits.history.scratch(len(tokens) * vocab_size))
            values = values - counts * frequency - (counts > 0) * presence
    flat[places] = values.clip(-_LARGEST, _LARGEST)


def _counts(places: I64, counted: Mask, zeros: F32) -> F32:
    """How often each of the places stands where it is counted. zeros: as many as there are places to be named."""
    np.add.at(zeros, places[counted], np.float32(1))
    counts = zeros[places]
    zeros[places] = 0
    return counts


def _bias(scores: F32, edits: RowEdits) -> None:
    biased = [(row, asks) for row, asks in zip(edits.rows, edits.asks, strict=True) if len(asks.bias_ids)]
    if biased:
        places = np.concatenate([row * scores.shape[1] + asks.bias_ids for row, asks in biased])
        flat = scores.reshape(-1)
        with np.errstate(over="ignore"):  # brought back
            values = flat[places] + np.concatenate([asks.bias_values for _, asks in biased])
        flat[places] = values.clip(-_LARGEST, _LARGEST)


def _ban_words(scores: F32, edits: RowEdits) -> None:
    chosen = [index for index, asks in enumerate(edits.asks) if len(asks.lasts)]
    if not chosen:
        return
    longest = max(edits.asks[index].prefixes.shape[1] for index in chosen)
    lasts = np.concatenate([edits.rows[index] * scores.shape[1] + edits.asks[index].lasts for index in chosen])
    wanted = np.concatenate([_widen(edits.asks[index].prefixes, longest) for index in chosen])
    slots = np.repeat(edits.slots[chosen], [len(edits.asks[index].lasts) for index in chosen])
    places = edits.history.lengths[slots, None] - longest + np.arange(longest)
    tails = np.where(places < 0, _NOTHING, edits.history.tokens[slots[:, None], places.clip(min=0)])
    matches = ((wanted == _ANYTHING) | (wanted == tails)).all(1)
    scores.reshape(-1)[lasts[matches]] = BANNED


def _allow_only(scores: F32, allowed: I64) -> None:
    kept = scores[allowed]
    scores.fill(BANNED)
    scores[allowed] = kept


def _widen(prefixes: I32, width: int) -> I32:
    return np.pad(prefixes, ((0, 0), (width - prefixes.shape[1], 0)), constant_values=_ANYTHING)


def _ids(column: bytes) -> I64:
    return read_column(column).astype(np.int64)
