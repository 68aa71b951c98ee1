"""The faults of mutants.toml as values. A fault names one place of the scheduler's core and what it becomes."""

import tomllib
from pathlib import Path

import msgspec

CORE = "services/scheduler/core/"


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`old` stands once in `file` and becomes `new`. first: the test file most likely to notice."""

    name: str
    file: str
    old: str
    new: str
    first: str = "test_scheduler.py"


KINDS = msgspec.convert(
    tomllib.loads((Path(__file__).parent / "mutants.toml").read_text()), dict[str, tuple[Mutant, ...]]
)
MUTANTS = tuple(mutant for mutants in KINDS.values() for mutant in mutants)
