"""Would the tests notice? Each one-line fault is put into a copy of the core, and the quick suite must fail.

Usage: python -m tests.proof.mutants [WORD ...]: all mutants, or those whose name holds one of the words. Exits 1 and
names those that survive. Two run at a time, each in a copy of its own; a run stops at the first test that fails.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

from tests.proof.mutations import CORE, KINDS, MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("services", "tests/unit/scheduler", "tests/proof", "pyproject.toml")
UNIT = "tests/unit/scheduler/"
# In this order after the file that a mutant names: what is quick and notices much comes first.
SUITE = (
    "test_scheduler.py",
    "test_recovery.py",
    "test_swap.py",
    "test_preemption.py",
    "test_prefix_cache.py",
    "test_policies.py",
    "test_joining.py",
    "test_random_workloads.py",
)
# It asks whether each mutant still fits the source, so it would notice any mutant by the words alone.
OWN_TEST = "tests/proof/test_mutations.py"
NUM_PROCESSES = 2
LIMIT_S = 600
PASSED, FAILED = 0, 1  # exit statuses of pytest


@dataclass(frozen=True)
class Verdict:
    """test: the first that failed; "" when all passed, or when pytest itself did not come through (`problem`)."""

    mutant: Mutant
    test: str
    seconds: float
    problem: str = ""

    @property
    def is_caught(self) -> bool:
        return bool(self.test)


@contextmanager
def scratch() -> Iterator[Path]:
    """A copy of what the quick suite needs."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for name in COPIED:
            source, target = ROOT / name, Path(folder) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
        yield Path(folder)


def test_files(folder: Path, first: str) -> list[str]:
    """Every test file once, the likely ones first, the proofs before the rest."""
    units = sorted(path.name for path in (folder / UNIT).glob("test_*.py"))
    order = [first, *SUITE]
    known = [name for name in dict.fromkeys(order) if name in units]
    rest = [name for name in units if name not in known]
    return [*(UNIT + name for name in known), "tests/proof", *(UNIT + name for name in rest)]


def run_suite(folder: Path, first: str) -> tuple[int, str]:
    """Exit status of pytest, and what it wrote."""
    options = ["-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-m", "not soak", "--tb=line"]
    options += ["--ignore", OWN_TEST]
    command = [sys.executable, "-B", "-m", "pytest", *options, *test_files(folder, first)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.returncode, done.stdout


def judge(folder: Path, mutant: Mutant) -> Verdict:
    """Put the fault in, run the suite, and take it out again."""
    path = folder / CORE / mutant.file
    original = path.read_text()
    path.write_text(original.replace(mutant.old, mutant.new))
    start = time.monotonic()
    try:
        status, output = run_suite(folder, mutant.first)
    except subprocess.TimeoutExpired:
        return Verdict(mutant, "", LIMIT_S, "no end")
    finally:
        path.write_text(original)
    seconds = time.monotonic() - start
    if status == PASSED:
        return Verdict(mutant, "", seconds)
    found = re.search(r"^FAILED (\S+)", output, re.MULTILINE)
    if status != FAILED or found is None:
        return Verdict(mutant, "", seconds, f"pytest ended with {status}: {output[-500:]}")
    return Verdict(mutant, found[1], seconds)


def judge_all(mutants: list[Mutant], tell: Callable[[Verdict], None]) -> list[Verdict]:
    """Each mutant in whichever copy is free."""
    copies: Queue[Path] = Queue()

    def judge_one(mutant: Mutant) -> Verdict:
        folder = copies.get()
        try:
            verdict = judge(folder, mutant)
        finally:
            copies.put(folder)
        tell(verdict)
        return verdict

    with scratch() as one, scratch() as other, ThreadPoolExecutor(NUM_PROCESSES) as pool:
        status, output = run_suite(one, SUITE[0])
        assert status == PASSED, f"the suite fails without a mutant:\n{output}"
        copies.put(one)
        copies.put(other)
        return list(pool.map(judge_one, mutants))


def tell(verdict: Verdict) -> None:
    how = f"caught by {verdict.test}" if verdict.is_caught else verdict.problem or "SURVIVED"
    print(f"{verdict.seconds:6.1f} s  {verdict.mutant.name}: {how}", flush=True)


def main(words: list[str]) -> int:
    """Judge, and say how each kind fared."""
    mutants = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    start = time.monotonic()
    verdicts = judge_all(mutants, tell)
    for kind, members in KINDS.items():
        judged = [verdict for verdict in verdicts if verdict.mutant in members]
        print(f"{kind}: {sum(verdict.is_caught for verdict in judged)} of {len(judged)} caught")
    survivors = [verdict.mutant.name for verdict in verdicts if not verdict.is_caught]
    print(f"{len(verdicts) - len(survivors)} of {len(verdicts)} caught in {time.monotonic() - start:.0f} s")
    for name in survivors:
        print(f"not caught: {name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
