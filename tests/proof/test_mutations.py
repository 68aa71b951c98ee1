"""The mutants stay what they are meant to be while the core changes: one place each, and a change of it."""

import pytest

from tests.proof.mutants import ROOT, UNIT
from tests.proof.mutations import CORE, KINDS, MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_and_is_a_program(mutant: Mutant) -> None:
    text = (ROOT / CORE / mutant.file).read_text()
    assert text.count(mutant.old) == 1 and mutant.old != mutant.new
    compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
    assert (ROOT / UNIT / mutant.first).is_file()


def test_there_are_enough_of_each_kind() -> None:
    assert len(MUTANTS) >= 25 and all(len(mutants) >= 5 for mutants in KINDS.values())
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
