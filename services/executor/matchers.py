"""Structured output of the slots: which tokens each constrained sequence may draw next.

A slot's Match follows the tokens that its generation has put out: those before a preemption or a restart are taken in
first, so a sequence continues where it was. As soon as a step's tokens are known, threads of their own take them in and
work out the next masks, which release the GIL; the next forward pass runs meanwhile, and only sampling waits for them.
Knows nothing of logits. Driven by one thread; a Match is touched by one thread at a time, its last task.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from services.executor.backend import Unsupported
from services.executor.batch import I32, I64, Mask, StepBatch
from services.executor.grammar import Grammar
from services.executor.grammars import Grammars
from services.executor.masks import TokenMasks, num_words
from services.executor.slots import read_column
from services.wire.messages import ModelCard, Sampling, SlotInit

# Fewer rows than this for each thread are not worth handing over.
_ROWS_PER_THREAD = 8


class Match:
    """One sequence and its constraint. bits: [words] what may follow, nothing where `why` says why nothing may.

    The ends of a text that are masked (by min_tokens or ignore_eos) are so only while something else may follow: what
    is complete ends.
    """

    def __init__(self, grammar: Grammar, sampling: Sampling, card: ModelCard) -> None:
        self.bits: I32 = np.zeros(num_words(card.vocab_size), np.int32)
        self._known_bits = self.bits[: num_words(grammar.vocab_size)]
        self.why = ""
        self._grammar = grammar
        self._shares_lexer = not grammar.is_worn
        self._matcher = grammar.start() if self._shares_lexer else grammar.start_alone()
        self._tokens: list[int] = []
        self._min_tokens = sampling.min_tokens
        self._stops = read_column(sampling.stop_token_ids)
        self._eos = np.array(card.eos_token_ids if sampling.ignore_eos else (), np.int32)

    def follow(self, tokens: Sequence[int]) -> None:
        """Take in tokens and set the bits anew."""
        self._tokens.extend(tokens)
        self.why = self._matcher.follow(tokens, self._known_bits)
        if self.why and self._shares_lexer and not self._matcher.is_dead_end:
            # Other texts may have used the lexer up; this one is judged by its own needs.
            self._grammar.is_worn, self._shares_lexer = True, False
            self._matcher = self._grammar.start_alone()
            self.why = self._matcher.follow(self._tokens, self._known_bits)
        if self.why:
            self.bits.fill(0)
        else:
            self._hold_open()

    def _hold_open(self) -> None:
        ends = np.concatenate((self._eos, self._stops)) if len(self._tokens) < self._min_tokens else self._eos
        if len(ends):
            others = self.bits.copy()
            np.bitwise_and.at(others.view(np.uint32), ends // 32, ~(np.uint32(1) << (ends % 32).astype(np.uint32)))
            if others.any():
                self.bits[:] = others


class Matchers:
    """The Match of each slot that has one. Slots whose task is not known to have ended are in _starting or _going."""

    def __init__(self, grammars: Grammars, card: ModelCard, num_threads: int) -> None:
        self._grammars = grammars
        self._card = card
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="mask")
        self._matches: dict[int, Match] = {}
        self._starting: dict[int, Future[Match]] = {}
        self._going: dict[int, Future[None]] = {}

    def begin(self, op: SlotInit) -> None:
        """A slot begins a generation, with a constraint or without. Raises Unsupported if it is not prepared."""
        self.drop(op.slot)
        if not op.constraint:
            return
        grammar = self._grammars.get(op.constraint)
        if grammar is None:
            raise Unsupported(f"constraint {op.constraint} is not prepared")
        outputs = read_column(op.known_tokens)[op.num_prompt_tokens :].tolist()
        self._starting[op.slot] = self._threads.submit(self._start, grammar, op.sampling, outputs)

    def drop(self, slot: int) -> None:
        """The slot's generation is over."""
        for by_slot in (self._matches, self._starting, self._going):
            by_slot.pop(slot, None)

    def clear(self) -> None:
        """Every generation is over."""
        for by_slot in (self._matches, self._starting, self._going):
            by_slot.clear()

    def masks(self, batch: StepBatch) -> TokenMasks | None:
        """What the masked rows of a step may draw; waits until it is known. None where no row is masked."""
        if not len(batch.masked_rows):
            return None
        slots = batch.slots[batch.masked_rows].tolist()
        matches = [self._settled(slot) for slot in slots]
        rows = np.searchsorted(batch.sampling_rows, batch.masked_rows)
        kept = [index for index, match in enumerate(matches) if match is not None]
        bits = [match.bits for match in matches if match is not None]
        return TokenMasks(rows[kept], np.stack(bits)) if bits else None

    def advance(self, batch: StepBatch, masks: TokenMasks, tokens: I64, is_drawn: Mask) -> None:
        """The step's masked rows have drawn, and the masks of the next step begin to be worked out.

        tokens, is_drawn: one for each sampling row; whether its token means anything.
        """
        rows = masks.rows[is_drawn[masks.rows]]
        drawn = list(zip(batch.slots[batch.sampling_rows[rows]].tolist(), tokens[rows].tolist(), strict=True))
        size = max(_ROWS_PER_THREAD, -(-len(drawn) // self._num_threads))
        for start in range(0, len(drawn), size):
            group = drawn[start : start + size]
            task = self._threads.submit(_follow, [(self._matches[slot], token) for slot, token in group])
            self._going.update((slot, task) for slot, _ in group)

    def why_stuck(self, slot: int) -> str:
        """Why nothing may follow in this slot; "" where something may, as far as its constraint goes."""
        match = self._matches.get(slot)
        return match.why if match is not None else ""

    def _settled(self, slot: int) -> Match | None:
        """The slot's match once its last task has ended; None for a generation that has failed."""
        if slot in self._starting:
            self._matches[slot] = self._starting.pop(slot).result()
        elif slot in self._going:
            self._going.pop(slot).result()
        return self._matches.get(slot)

    def _start(self, grammar: Grammar, sampling: Sampling, outputs: list[int]) -> Match:
        match = Match(grammar, sampling, self._card)
        match.follow(outputs)
        return match


def _follow(drawn: list[tuple[Match, int]]) -> None:
    for match, token in drawn:
        match.follow([token])
