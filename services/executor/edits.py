"""What changes scores before a token is chosen: penalties, then biases, then everything that may not be drawn.

Works in place on the rows that ask for it. Penalties and bad words read the History, which already holds the token
that the step before sampled. Repetition divides a positive logit and multiplies a negative one (Keskar et al., CTRL,
2019) for every token of prompt and output; frequency subtracts for each time a token was put out, presence once if it
was. Penalties and biases keep scores finite; a ban is minus infinity, so no later edit can lift it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.executor.batch import F32, I32, I64
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


def edit(scores: Tensor, edits: RowEdits | None, masks: TokenMasks | None, operations: ScoreOperations = PLAIN) -> None:
    """Change scores [rows, vocab], float32 and finite, in place."""
    if edits is not None:
        _penalize(scores, edits)
        _bias(scores, edits)
        _ban_words(scores, edits)
        for row, output, asks in zip(edits.rows.tolist(), edits.outputs.tolist(), edits.asks, strict=True):
            if output < asks.min_tokens:
                scores[row].index_fill_(0, torch.from_numpy(asks.stop_ids), BANNED)
            if asks.allowed is not None:
                _allow_only(scores[row], torch.from_numpy(asks.allowed))
    if masks is not None:
        operations.ban(scores, masks)


def _penalize(scores: Tensor, edits: RowEdits) -> None:
    chosen = np.array([index for index, asks in enumerate(edits.asks) if asks.penalties is not None], np.int64)
    if not len(chosen):
        return
    numbers = np.array([edits.asks[index].penalties for index in chosen], np.float32)
    repetition, presence, frequency = torch.from_numpy(numbers)[:, :, None].unbind(1)
    lengths = edits.history.lengths[edits.slots[chosen]].astype(np.int64)
    positions = torch.arange(int(lengths.max()))
    tokens = edits.history.tokens[:, : len(positions)].index_select(0, torch.from_numpy(edits.slots[chosen])).long()
    exists = positions < torch.from_numpy(lengths)[:, None]
    # Past its end a row repeats its first token, whose score comes out the same each time.
    tokens = torch.where(exists, tokens, tokens[:, :1])
    flat = torch.from_numpy(edits.rows[chosen])[:, None] * scores.shape[1] + tokens
    values = scores.view(-1).index_select(0, flat.flatten()).view(flat.shape)
    values = torch.where(values > 0, values / repetition, values * repetition)
    if numbers[:, 1:].any():
        num_prompt = lengths - edits.outputs[chosen]
        is_output = exists & (positions >= torch.from_numpy(num_prompt)[:, None])
        counts = _counts(tokens, is_output, edits.history.scratch(len(tokens), scores.shape[1]))
        values = values - counts * frequency - (counts > 0) * presence
    scores.view(-1).scatter_(0, flat.flatten(), values.clamp_(-_LARGEST, _LARGEST).flatten())


def _counts(tokens: Tensor, counted: Tensor, zeros: Tensor) -> Tensor:
    """[rows, n] how often each of tokens [rows, n] stands at a counted place of its row. zeros: [rows, vocab]."""
    counts = zeros.scatter_add_(1, tokens, counted.float()).gather(1, tokens)
    zeros.scatter_(1, tokens, 0.0)
    return counts


def _bias(scores: Tensor, edits: RowEdits) -> None:
    biased = [(row, asks) for row, asks in zip(edits.rows, edits.asks, strict=True) if len(asks.bias_ids)]
    if biased:
        flat = torch.from_numpy(np.concatenate([row * scores.shape[1] + asks.bias_ids for row, asks in biased]))
        values = scores.view(-1)[flat] + torch.from_numpy(np.concatenate([asks.bias_values for _, asks in biased]))
        scores.view(-1)[flat] = values.clamp_(-_LARGEST, _LARGEST)


def _ban_words(scores: Tensor, edits: RowEdits) -> None:
    chosen = [index for index, asks in enumerate(edits.asks) if len(asks.lasts)]
    if not chosen:
        return
    longest = max(edits.asks[index].prefixes.shape[1] for index in chosen)
    lasts = np.concatenate([edits.rows[index] * scores.shape[1] + edits.asks[index].lasts for index in chosen])
    prefixes = np.concatenate([_widen(edits.asks[index].prefixes, longest) for index in chosen])
    num_words = [len(edits.asks[index].lasts) for index in chosen]
    slots = torch.from_numpy(np.repeat(edits.slots[chosen], num_words))
    lengths = torch.from_numpy(edits.history.lengths[slots.numpy()].astype(np.int64))
    places = lengths[:, None] - longest + torch.arange(longest)
    tails = edits.history.tokens[slots[:, None], places.clamp(min=0)].masked_fill_(places < 0, _NOTHING)
    wanted = torch.from_numpy(prefixes)
    matches = ((wanted == _ANYTHING) | (wanted == tails)).all(1)
    # Added, not set: words that end alike share their last token.
    penalty = torch.zeros(len(lasts)).masked_fill_(matches, BANNED)
    scores.view(-1).index_put_((torch.from_numpy(lasts),), penalty, accumulate=True)


def _allow_only(scores: Tensor, allowed: Tensor) -> None:
    kept = scores.index_select(0, allowed)
    scores.fill_(BANNED)
    scores.index_copy_(0, allowed, kept)


def _widen(prefixes: I32, width: int) -> I32:
    return np.pad(prefixes, ((0, 0), (width - prefixes.shape[1], 0)), constant_values=_ANYTHING)


def _ids(column: bytes) -> I64:
    return read_column(column).astype(np.int64)
