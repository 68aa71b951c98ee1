"""The form of the code: sizes, names, opening words, and where everything may be caught."""

import ast

import pytest

from services.runtime.supervisor import MODULES
from tests.architecture.tree import ROOT, Source, product, sources

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40
MAX_PARAMETERS = 5
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}

# A command's flags are its parameters, each with its help beside it.
COMMANDS = {
    ("tandem/cli/serve.py", "serve"),
    ("tandem/cli/generate.py", "generate"),
    ("tandem/cli/chat.py", "chat"),
    ("tandem/cli/models.py", "served"),
    ("tandem/cli/load.py", "load"),
}
MAY_BE_LONG = COMMANDS
# attend_paged has the signature of the kernels that it stands for.
MAY_HAVE_MANY_PARAMETERS = COMMANDS | {("services/executor/attention.py", "attend_paged")}
# Where every exception may be caught: at the end of a process, of a thread, of a call, and of a library that raises it.
MAY_CATCH_ALL = {
    "services/runtime/lifecycle.py",
    "services/executor/threads.py",
    "gateway/guard.py",
    "services/tokenizer/hf_files.py",
}

ALL = product()
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: Source) -> list[Function]:
    return [node for node in ast.walk(source.tree) if isinstance(node, Function)]


def catches_all(source: Source) -> bool:
    handlers = [node for node in ast.walk(source.tree) if isinstance(node, ast.ExceptHandler)]
    caught = [ast.unparse(handler.type) if handler.type else "" for handler in handlers]
    return any(kind in ("", "Exception", "BaseException") for kind in caught)


def is_kernel(function: Function) -> bool:
    """A kernel's parameters are its memory and what it is compiled for: it has as many as there are."""
    return any(ast.unparse(decorator) == "triton.jit" for decorator in function.decorator_list)


def num_lines(function: Function) -> int:
    first = function.body[0].lineno if is_kernel(function) else function.lineno
    return (function.end_lineno or 0) - first + 1


def num_parameters(function: Function) -> int:
    if is_kernel(function):
        return 0
    arguments = function.args
    names = [argument.arg for argument in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
    return len([name for name in names if name not in ("self", "cls")])


@pytest.mark.parametrize("source", ALL, ids=lambda source: str(source.path))
def test_a_file_fits_in_a_head(source: Source) -> None:
    assert source.text.count("\n") <= MAX_FILE_LINES


@pytest.mark.parametrize("source", ALL, ids=lambda source: str(source.path))
def test_a_function_fits_on_a_screen(source: Source) -> None:
    lengths = {node.name: num_lines(node) for node in functions(source)}
    long = {(str(source.path), name) for name, length in lengths.items() if length > MAX_FUNCTION_LINES}
    assert long <= MAY_BE_LONG


@pytest.mark.parametrize("source", ALL, ids=lambda source: str(source.path))
def test_a_function_takes_few_parameters(source: Source) -> None:
    many = {(str(source.path), node.name) for node in functions(source) if num_parameters(node) > MAX_PARAMETERS}
    assert many <= MAY_HAVE_MANY_PARAMETERS


@pytest.mark.parametrize("source", [*ALL, *sources("tests")], ids=lambda source: str(source.path))
def test_a_file_says_what_it_is_and_is_named_after_it(source: Source) -> None:
    assert ast.get_docstring(source.tree)
    assert source.path.stem not in FORBIDDEN_NAMES


def test_every_exception_is_caught_only_where_something_ends() -> None:
    assert {str(source.path) for source in ALL if catches_all(source)} == MAY_CATCH_ALL


def test_the_exceptions_from_the_rules_are_needed() -> None:
    known = {(str(source.path), node.name) for source in ALL for node in functions(source)}
    assert known >= MAY_HAVE_MANY_PARAMETERS | MAY_BE_LONG


def test_every_process_has_a_page_that_tells_what_it_is() -> None:
    for module in MODULES.values():
        assert (ROOT / module.replace(".", "/") / "__main__.py").is_file()
