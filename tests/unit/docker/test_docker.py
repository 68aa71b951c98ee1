"""The images and their composition, as far as that can be judged without an engine: lint, rules, what goes in."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
SERVICES = ("gateway", "scheduler", "detokenizer", "executor")
BIN = Path(sys.executable).parent


def dockerfile(service: str) -> Path:
    return ROOT / "docker" / f"{service}.Dockerfile"


def closure(package: str, extra: str) -> set[str]:
    """Every package that an extra of one brings along, as far as they are installed here."""
    found: set[tuple[str, str]] = set()
    todo = [(package, extra)]
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) not in found:
            found.add((name, wanted))
            todo += needs(name, wanted)
    return {name for name, _ in found} - {package}


def stated(name: str, extra: str) -> list[str]:
    """The requirements of a package; our own as the project states them, which is what an image is built from."""
    if name == "tandem":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        return [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else ())]
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


def needs(name: str, extra: str) -> Iterator[tuple[str, str]]:
    for requirement in map(Requirement, stated(name, extra)):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            for each in requirement.extras or {""}:
                yield re.sub(r"[-_.]+", "-", requirement.name).lower(), each


@pytest.mark.parametrize("service", SERVICES)
def test_a_dockerfile_has_nothing_that_the_linter_minds(service: str) -> None:
    done = subprocess.run([BIN / "hadolint", dockerfile(service)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_is_pinned_runs_as_nobody_and_says_whether_it_lives(service: str) -> None:
    text = dockerfile(service).read_text()
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert set(bases) == {"python:3.11-slim-bookworm"} and "constraints.txt" in text
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK .* CMD \[", text, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["python", "-m", "[a-z.]+"\]$', text, re.MULTILINE), (
        "signals reach the service itself"
    )
    assert "# syntax" not in text


def test_the_composition_is_valid() -> None:
    done = subprocess.run([BIN / "docker-compose", "config", "--quiet"], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("extra", "unwanted"),
    [
        ("scheduler", {"torch", "numpy", "grpcio", "tokenizers", "gguf"}),
        ("detokenizer", {"torch", "numpy", "grpcio", "gguf"}),
        ("gateway", {"torch", "numpy", "gguf", "typer"}),
    ],
)
def test_what_an_image_has_no_use_for_does_not_get_into_it(extra: str, unwanted: set[str]) -> None:
    brought = closure("tandem", extra)
    assert "msgspec" in brought and "pyzmq" in brought
    assert brought & unwanted == set()
    assert "torch" in closure("tandem", "executor"), "the test would notice"
