"""Structured output in steps: masked rows draw what their own text allows, the others as if they were alone."""

import dataclasses
import json
import re
import threading
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from services.executor.attention import ReferencePlan
from services.executor.grammar import Compiler, Grammar, Matcher
from services.executor.grammars import Grammars
from services.executor.masks import num_words
from services.executor.matchers import Matchers
from services.executor.torch_arrays import open_kv, plain_blocks
from services.executor.torch_backend import TorchBackend
from services.runtime.settings import ExecutorSettings
from services.wire import columns
from services.wire.messages import (
    Constraint,
    ConstraintKind,
    FailedRow,
    FailureReason,
    Op,
    Prepare,
    Prepared,
    RowFlag,
    Sampling,
    SlotInit,
)
from tests.unit.executor.fake_model import FakeModel
from tests.unit.executor.rig import GREEDY, Driver, Row, append, small_capacity, tokens_of
from tests.unit.executor.toy_vocabulary import ENDS, SIZE, ToyVocabulary

VOCABULARY = ToyVocabulary()
ROWS = SIZE + 50  # the model has more rows than the tokenizer has tokens
PROMPT = [65, 66, 67]
AB = "(a|b){3,20}c"
PATIENCE_S = 20.0


def any_logits(token: int, position: int) -> Tensor:
    """A model that likes, after each token and position, something else."""
    return torch.randn(ROWS, generator=torch.Generator().manual_seed(token * 1000 + position))


def loves(*token_ids: int) -> Callable[[int, int], Tensor]:
    """A model that likes these, the first most, at every position."""

    def logits_of(token: int, position: int) -> Tensor:
        logits = torch.zeros(ROWS)
        logits[list(token_ids)] = torch.arange(len(token_ids), 0, -1, dtype=torch.float32) * 10
        return logits

    return logits_of


class Engine:
    """A driver of a backend that follows constraints, and the sequences in its slots."""

    def __init__(
        self,
        logits_of: Callable[[int, int], Tensor] = any_logits,
        compile: Callable[[Constraint], Grammar] | None = None,
    ) -> None:
        small = small_capacity(ROWS)
        card = msgspec.structs.replace(small.card, eos_token_ids=ENDS)
        capacity = dataclasses.replace(small, card=card)
        self.grammars = Grammars(compile or Compiler(ExecutorSettings(), lambda: VOCABULARY), cache_size=4)
        kv = open_kv(capacity, num_layers=1, shape=plain_blocks(capacity.block_size, 1, 2))
        backend: TorchBackend[ReferencePlan] = TorchBackend(FakeModel(logits_of), capacity, kv, is_debug=True)
        backend.follow(Matchers(self.grammars, card, num_threads=2))
        self.driver = Driver(backend)
        self.num_prepared = 0

    def prepare(self, source: str, kind: ConstraintKind = ConstraintKind.REGEX) -> int:
        self.num_prepared += 1
        answer = self.grammars.prepare(Prepare(self.num_prepared, Constraint(kind, source)))
        assert answer == Prepared(self.num_prepared)
        return self.num_prepared

    def join(
        self,
        slot: int,
        constraint: int = 0,
        outputs: Sequence[int] = (),
        sampling: Sampling = GREEDY,
        num_blocks: int = 8,
    ) -> tuple[list[Op], Row]:
        """The ops and the row with which a sequence with these outputs takes a slot."""
        known = [*PROMPT, *outputs]
        init = SlotInit(slot, slot, sampling, slot, len(PROMPT), columns.pack(known), constraint)
        blocks = append(slot, range(slot * 8, slot * 8 + num_blocks))
        return [init, blocks], Row(slot, 0, known, flags=RowFlag.MASKED if constraint else 0)

    def run(self, *joins: tuple[list[Op], Row], num_steps: int = 24) -> list[list[int]]:
        """The outputs of sequences that join at once and go on together."""
        ops = [op for join, _ in joins for op in join]
        steps = [tokens_of(self.driver.run(ops, [row for _, row in joins]))]
        steps += [tokens_of(self.driver.carry()) for _ in range(num_steps - 1)]
        return [list(tokens) for tokens in zip(*steps, strict=True)]


def text(tokens: list[int]) -> str:
    """Up to the end."""
    ends = [index for index, token in enumerate(tokens) if token in ENDS]
    return VOCABULARY.text(tokens[: ends[0]] if ends else tokens)


def alone(constraint: str = "", sampling: Sampling = GREEDY, num_steps: int = 24) -> list[int]:
    engine = Engine()
    number = engine.prepare(constraint) if constraint else 0
    return engine.run(engine.join(1, number, sampling=sampling), num_steps=num_steps)[0]


def test_rows_follow_their_own_constraints_and_neighbours_change_nothing() -> None:
    engine = Engine()
    numbers = [engine.prepare(source) for source in (AB, "[0-9]{4}", "xy*z")]
    sampled = Sampling(temperature=1.0)
    outputs = engine.run(
        engine.join(1, numbers[0]),
        engine.join(2),
        engine.join(3, numbers[1], sampling=sampled),
        engine.join(4, numbers[2]),
        engine.join(5, numbers[0], sampling=sampled),
    )
    for tokens, pattern in zip([outputs[0], *outputs[2:]], (AB, "[0-9]{4}", "xy*z", AB), strict=True):
        assert re.fullmatch(pattern, text(tokens)), text(tokens)
    assert outputs[0] == alone(AB) and outputs[1] == alone()


def test_json_is_json() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["é", 1, None]}, "b": {"type": "boolean"}}}
    engine = Engine()
    number = engine.prepare(json.dumps(schema | {"additionalProperties": False}), ConstraintKind.JSON_SCHEMA)
    for seed in range(8):
        engine.driver.next_epoch()
        ops, row = engine.join(1, number, sampling=Sampling(temperature=1.0), num_blocks=30)
        (tokens,) = engine.run(([msgspec.structs.replace(ops[0], seed=seed), ops[1]], row), num_steps=60)
        value = json.loads(text(tokens))
        assert isinstance(value, dict) and value.get("a") in ("é", 1, None)


@pytest.mark.parametrize("known", [0, 1, 4, 9])
def test_a_sequence_continues_where_it_was(known: int) -> None:
    """After a preemption, or on another executor: its outputs come with the slot."""
    whole = alone(AB)
    engine = Engine()
    number = engine.prepare(AB)
    (rest,) = engine.run(engine.join(2, number, whole[:known]), num_steps=24 - known)
    assert rest[: len(whole) - known] == whole[known:]


def test_a_chunk_that_does_not_sample_needs_no_mask() -> None:
    engine = Engine()
    (init, blocks), row = engine.join(1, engine.prepare(AB))
    first = dataclasses.replace(row, tokens=row.tokens[:2], samples=False)
    engine.driver.run([init, blocks], [first])
    last = dataclasses.replace(row, tokens=row.tokens[2:], position=2)
    tokens = tokens_of(engine.driver.run([], [last]))
    tokens += [token for _ in range(23) for token in tokens_of(engine.driver.carry())]
    assert tokens == alone(AB)


def test_a_slot_forgets_the_constraint_of_the_sequence_before() -> None:
    engine = Engine()
    engine.run(engine.join(1, engine.prepare(AB)), num_steps=3)
    engine.driver.next_epoch()
    assert engine.run(engine.join(1)) == [alone()]


def test_a_released_constraint_is_followed_to_the_end_of_the_text() -> None:
    engine = Engine()
    number = engine.prepare(AB)
    join, row = engine.join(1, number)
    tokens = tokens_of(engine.driver.run(join, [row]))
    engine.grammars.release(number)
    tokens += [token for _ in range(23) for token in tokens_of(engine.driver.carry())]
    assert tokens == alone(AB)


@pytest.mark.parametrize(
    ("pattern", "sampling", "expected"),
    [
        ("a{1,9}", Sampling(temperature=0.0), "a"),
        ("a{1,9}", Sampling(temperature=0.0, min_tokens=4, stop_token_ids=columns.pack(ENDS)), "aaaa"),
        ("a{1,9}", Sampling(temperature=0.0, ignore_eos=True), "aaaaaaaaa"),
        ("a{2}", Sampling(temperature=0.0, min_tokens=9, stop_token_ids=columns.pack(ENDS)), "aa"),
        ("a{2}", Sampling(temperature=0.0, ignore_eos=True), "aa"),
        ("a", Sampling(temperature=0.0, min_tokens=3, stop_token_ids=columns.pack([97])), "a"),
    ],
)
def test_ends_are_masked_only_while_something_else_may_follow(pattern: str, sampling: Sampling, expected: str) -> None:
    """The model loves to end. A stop id that is all that may follow is drawn, too."""
    engine = Engine(loves(*ENDS, ord("a")))
    (tokens,) = engine.run(engine.join(1, engine.prepare(pattern), sampling=sampling), num_steps=12)
    assert text(tokens) == expected and ENDS[0] in tokens


def test_a_dead_end_ends_its_own_sequence_alone() -> None:
    engine = Engine(loves(ord("x"), ord("a")))
    (blocked, plain) = engine.join(1, engine.prepare("x[\x04\x05]")), engine.join(2, engine.prepare("xa*"))
    ops = [*blocked[0], *plain[0]]
    assert tokens_of(engine.driver.run(ops, [blocked[1], plain[1]])) == [ord("x"), ord("x")]
    result = engine.driver.carry()
    why = FailedRow(0, FailureReason.CONSTRAINT_FAILED, f"step {result.step}: no token may follow")
    assert result.failed_rows == (why,) and tokens_of(result) == [ord("a")]
    later = engine.driver.carry()
    assert [failed.row for failed in later.failed_rows] == [0] and tokens_of(later) == [ord("a")]


def test_what_takes_too_much_work_says_so() -> None:
    engine = Engine(compile=Compiler(ExecutorSettings(constraint_mask_work=300), lambda: VOCABULARY))
    join, row = engine.join(1, engine.prepare(r"(\w+\s?){50,200}"))
    results = [engine.driver.run(join, [row]), *(engine.driver.carry() for _ in range(6))]
    (failed,) = next(result.failed_rows for result in results if result.failed_rows)
    assert failed.failure == FailureReason.CONSTRAINT_FAILED and "too many" in failed.detail


def test_a_ban_beside_the_constraint_can_leave_nothing() -> None:
    engine = Engine()
    sampling = Sampling(temperature=0.0, bad_words=(columns.pack([ord("x")]),))
    join, row = engine.join(1, engine.prepare("x"), sampling=sampling)
    (failed,) = engine.driver.run(join, [row]).failed_rows
    assert failed.failure == FailureReason.CONSTRAINT_FAILED


def test_a_constraint_that_was_not_prepared_fails_its_own_slot() -> None:
    engine = Engine()
    (lost, good) = engine.join(1, 77), engine.join(2, engine.prepare("a"))
    result = engine.driver.run([*lost[0], *good[0]], [lost[1], good[1]])
    (failed,) = result.failed_rows
    assert (failed.row, failed.failure) == (0, FailureReason.STEP_FAILED) and "not prepared" in failed.detail
    assert tokens_of(result) == [ord("a")]


def test_a_worn_lexer_costs_the_others_of_its_grammar_nothing_but_time() -> None:
    """One text exhausts the lexer that all texts of a grammar share; another goes on with a lexer of its own."""
    compile = Compiler(ExecutorSettings(constraint_mask_work=3000), lambda: VOCABULARY)
    hard = r"(\w+\s?){50,200}|(?:aaa ?)*"
    engine, fresh = Engine(compile=compile), Engine(compile=compile)
    number = engine.prepare(hard)
    grammar = engine.grammars.get(number)
    assert grammar is not None
    other, bits = grammar.start(), np.zeros(num_words(SIZE), np.int32)
    assert any(other.follow([ord(letter)], bits) for letter in "the quick brown fox jumps over it")
    assert grammar.start().follow([ord("t")], bits), "the lexer was not exhausted"
    outputs = [each.run(each.join(1, each.prepare(hard)), num_steps=2) for each in (engine, fresh)]
    assert outputs[0] == outputs[1]


class Gated(Grammar):
    """A grammar whose masks are there once the gate is open; `done` is set by each."""

    def __init__(self, grammar: Grammar) -> None:
        self.gate, self.done = threading.Event(), threading.Event()
        self.gate.set()
        self._inner = grammar
        self.vocab_size, self.is_worn = grammar.vocab_size, False

    def start(self) -> Matcher:
        return GatedMatcher(self, self._inner.start())


class GatedMatcher(Matcher):
    def __init__(self, grammar: Gated, matcher: Matcher) -> None:
        super().__init__(matcher.inner)
        self._grammar = grammar

    def take_in(self, tokens: Sequence[int]) -> None:
        assert self._grammar.gate.wait(PATIENCE_S)
        super().take_in(tokens)

    def why(self) -> str:
        why = super().why()
        self._grammar.done.set()
        return why


def test_masks_are_worked_out_while_the_forward_pass_runs() -> None:
    """Here it does not end before the mask of its step is there; worked out after it, the mask would never come."""
    compiler, gated = Compiler(ExecutorSettings(), lambda: VOCABULARY), list[Gated]()

    def compile(constraint: Constraint) -> Grammar:
        gated.append(Gated(compiler(constraint)))
        return gated[-1]

    def logits_of(token: int, position: int) -> Tensor:
        assert gated[0].done.wait(PATIENCE_S)
        gated[0].done.clear()
        return any_logits(token, position)

    engine = Engine(logits_of, compile)
    assert engine.run(engine.join(1, engine.prepare(AB)), num_steps=6) == [alone(AB, num_steps=6)]


def test_steps_without_a_masked_row_wait_for_no_mask() -> None:
    """A sequence with a long output to be taken in joins in chunks; the others go on meanwhile."""
    compiler, gated = Compiler(ExecutorSettings(), lambda: VOCABULARY), list[Gated]()

    def compile(constraint: Constraint) -> Grammar:
        gated.append(Gated(compiler(constraint)))
        gated[-1].gate.clear()
        return gated[-1]

    engine = Engine(compile=compile)
    slow, row = engine.join(1, engine.prepare(AB))
    plain = engine.join(2)
    chunk = dataclasses.replace(row, tokens=row.tokens[:1], samples=False)
    outputs = tokens_of(engine.driver.run([*slow, *plain[0]], [chunk, plain[1]]))
    outputs += tokens_of(engine.driver.carry(dropped=[0]))
    assert outputs == alone(num_steps=2)
    gated[0].gate.set()
    last = dataclasses.replace(row, tokens=row.tokens[1:], position=1)
    assert tokens_of(engine.driver.run([], [last])) == alone(AB, num_steps=1)


def test_many_rows_are_shared_among_the_threads() -> None:
    engine = Engine()
    number = engine.prepare("[ab]{2,9}")
    outputs = engine.run(*(engine.join(slot, number) for slot in range(1, 8)), num_steps=10)
    assert all(re.fullmatch("[ab]{2,9}", text(tokens)) for tokens in outputs)
