"""Prepared constraints: held while somebody may need them, kept for a while, judged once."""

import pytest

from services.executor.grammar import Compiler, Grammar, GrammarError
from services.executor.grammars import Grammars
from services.runtime.settings import ExecutorSettings
from services.wire.messages import Constraint, ConstraintKind, Prepare, Prepared
from tests.unit.executor.toy_vocabulary import ToyVocabulary


def regex(source: str) -> Constraint:
    return Constraint(ConstraintKind.REGEX, source)


class Counting:
    """Compiles, and counts how often."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self._compile = Compiler(ExecutorSettings(), ToyVocabulary)

    def __call__(self, constraint: Constraint) -> Grammar:
        self.sources.append(constraint.source)
        return self._compile(constraint)


def test_a_grammar_is_held_from_its_answer_to_its_release() -> None:
    grammars = Grammars(Counting(), cache_size=0)
    assert grammars.get(1) is None
    assert grammars.prepare(Prepare(1, regex("a"))) == Prepared(1)
    held = grammars.get(1)
    assert held is not None
    grammars.release(1)
    assert grammars.get(1) is None
    held.start()  # a text that follows it goes on


def test_an_error_is_an_answer_and_nothing_is_held() -> None:
    grammars = Grammars(Counting(), cache_size=4)
    answer = grammars.prepare(Prepare(7, regex("(a")))
    assert answer.number == 7 and "unclosed group" in answer.detail
    assert grammars.get(7) is None


@pytest.mark.parametrize(("cache_size", "num_compiled"), [(0, 6), (1, 5), (2, 3)])
def test_the_last_released_are_kept(cache_size: int, num_compiled: int) -> None:
    compile = Counting()
    grammars = Grammars(compile, cache_size)
    for number, source in enumerate(("a", "b", "b", "a", "b", "c"), 1):
        assert grammars.prepare(Prepare(number, regex(source))) == Prepared(number)
        grammars.release(number)
    assert len(compile.sources) == num_compiled


def test_the_cache_never_holds_back_what_is_held() -> None:
    grammars = Grammars(Counting(), cache_size=1)
    for number in range(1, 6):
        grammars.prepare(Prepare(number, regex("a" * number)))
    assert all(grammars.get(number) for number in range(1, 6))


def test_a_worn_grammar_is_not_used_again() -> None:
    compile = Counting()
    grammars = Grammars(compile, cache_size=4)
    grammars.prepare(Prepare(1, regex("a")))
    held = grammars.get(1)
    assert held is not None
    held.is_worn = True
    grammars.release(1)
    grammars.prepare(Prepare(2, regex("a")))
    assert grammars.get(2) is not held and compile.sources == ["a", "a"]


def test_where_constraints_are_only_judged_the_verdict_is_remembered() -> None:
    judged: list[str] = []

    def judge(constraint: Constraint) -> None:
        judged.append(constraint.source)
        if constraint.source == "bad":
            raise GrammarError("bad indeed")

    grammars = Grammars(judge, cache_size=2)
    assert grammars.prepare(Prepare(1, regex("good"))) == Prepared(1)
    assert grammars.prepare(Prepare(2, regex("bad"))) == Prepared(2, "bad indeed")
    grammars.release(1)
    assert grammars.prepare(Prepare(3, regex("good"))) == Prepared(3)
    assert judged == ["good", "bad"]
