"""Structured output of the slots: which tokens each constrained sequence may draw next.

A slot's Match follows the tokens that its generation has put out: those before a preemption or a restart are taken in
first, so a sequence continues where it was. As soon as a step's tokens are known, a thread of its own takes them in and
has the next masks worked out, all at once and without the GIL: from when the step's tokens leave until the next forward
pass is under way there is a core to spare. Only sampling waits for them.
Knows nothing of logits. Driven by one thread; a Match is touched by one thread at a time, its last task.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from services.executor.backend import Unsupported
from services.executor.batch import I32, I64, Mask, StepBatch
from services.executor.grammar import Grammar, Masker
from services.executor.grammars import Grammars
from services.executor.masks import TokenMasks, num_words, words_of
from services.executor.slots import read_column
from services.wire.messages import ModelCard, Sampling, SlotInit


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
        self.matcher = grammar.start() if self._shares_lexer else grammar.start_alone()
        self._tokens: list[int] = []
        self._min_tokens = sampling.min_tokens
        ends = card.eos_token_ids if sampling.ignore_eos else ()
        self._early_ends = words_of((*ends, *read_column(sampling.stop_token_ids).tolist()))
        self._late_ends = words_of(ends)

    @property
    def num_known_words(self) -> int:
        """How many words its matcher sets: as many for all constraints on one vocabulary."""
        return len(self._known_bits)

    def follow(self, tokens: Sequence[int]) -> None:
        """Take in tokens and set the bits anew."""
        self._tokens.extend(tokens)
        self._judge(self.matcher.follow(tokens, self._known_bits))

    def take_in(self, token: int) -> None:
        """Take in a token; `settle` comes next."""
        self._tokens.append(token)
        self.matcher.take_in([token])

    def settle(self, bits: I32) -> None:
        """The bits that its matcher has set meanwhile, elsewhere."""
        self._known_bits[:] = bits
        self._judge(self.matcher.why())

    def _judge(self, why: str) -> None:
        self.why = why
        if why and self._shares_lexer and not self.matcher.is_dead_end:
            # Other texts may have used the lexer up; this one is judged by its own needs.
            self._grammar.is_worn, self._shares_lexer = True, False
            self.matcher = self._grammar.start_alone()
            self.why = self.matcher.follow(self._tokens, self._known_bits)
        if self.why:
            self.bits.fill(0)
        else:
            self._hold_open()

    def _hold_open(self) -> None:
        words, ends = self._early_ends if len(self._tokens) < self._min_tokens else self._late_ends
        held = self.bits[words] & ends
        if held.any():
            self.bits[words] ^= held
            if not self.bits.any():
                self.bits[words] ^= held


class Matchers:
    """The Match of each slot that has one. Slots whose task is not known to have ended are in _starting or _going."""

    def __init__(self, grammars: Grammars, card: ModelCard, num_threads: int) -> None:
        self._grammars = grammars
        self._card = card
        self._masker = Masker(num_threads)
        # Whoever begins may have much to take in; those that go on are not to wait for it.
        self._starters = ThreadPoolExecutor(1, thread_name_prefix="match")
        self._followers = ThreadPoolExecutor(1, thread_name_prefix="mask")
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
        self._starting[op.slot] = self._starters.submit(self._start, grammar, op.sampling, outputs)

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
        slots = batch.slots[batch.sampling_rows[rows]].tolist()
        if slots:
            task = self._followers.submit(self._follow, [self._matches[slot] for slot in slots], tokens[rows].tolist())
            self._going.update((slot, task) for slot in slots)

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

    def _follow(self, matches: list[Match], tokens: list[int]) -> None:
        for match, token in zip(matches, tokens, strict=True):
            match.take_in(token)
        bits = np.zeros((len(matches), matches[0].num_known_words), np.int32)
        self._masker.fill([match.matcher for match in matches], bits)
        for match, own in zip(matches, bits, strict=True):
            match.settle(own)
