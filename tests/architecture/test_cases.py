"""Every known fault has tests that exist, and that every run of the tests includes."""

import ast
import tomllib
from functools import cache
from typing import Any

import pytest

from tests.architecture.tree import ROOT, sources

FILES = sorted((ROOT / "tests/data").glob("cases_*.toml"))
CASES: dict[str, Any] = {name: case for file in FILES for name, case in tomllib.loads(file.read_text()).items()}
LEFT_OUT = {"soak", "gpu", "bench"}


def marks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The last names of its decorators, such as soak of pytest.mark.soak."""
    return {decorator.attr for decorator in function.decorator_list if isinstance(decorator, ast.Attribute)}


@cache
def functions() -> dict[str, set[str]]:
    """Every test by file and name, and its marks."""
    return {
        f"{source.path.relative_to('tests')}::{node.name}": marks(node)
        for source in sources("tests")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("case", CASES)
def test_a_fault_has_tests_that_run(case: str) -> None:
    known = functions()
    assert CASES[case]["fault"].endswith(".") and CASES[case]["tests"]
    assert [name for name in CASES[case]["tests"] if name not in known or known[name] & LEFT_OUT] == []
