"""The examples, run as a reader would run them, against a server that echoes."""

import shutil
import subprocess
import sys

import pytest

from tests.e2e.processes import PATIENCE_S, ROOT
from tests.e2e.serving import Serving

NODE = ROOT / "examples/node"


def output_of(*command: str) -> list[str]:
    """What a program printed; it must end well."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.splitlines()


def test_first_steps_in_python(echo: Serving) -> None:
    model, answer, stream, turn, refused = output_of(sys.executable, "examples/python/first_steps.py", echo.address)
    assert model == "model: echo, context 512 tokens"
    assert answer == "generate: 'The capital of France isThe capital of', 8 tokens"
    assert stream.startswith("stream: One, two, three,One,")
    assert turn.startswith("chat: 'system\\nYou are a helpful AI") and turn.endswith("finished by length")
    assert refused.startswith("refused: INVALID_FIELD, {'sampling.temperature': ")


def test_many_at_once_in_python(echo: Serving) -> None:
    lines = output_of(sys.executable, "examples/python/many_at_once.py", echo.address)
    assert len(lines) == 16
    for number, line in enumerate(lines):
        question, _, said = line.partition(" -> ")
        assert question == f"Question {number}: what is {number} plus {number}?"
        assert said.startswith(f"'{question}")


def test_first_steps_in_node(echo: Serving) -> None:
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules").is_dir():
        pytest.skip("needs Node and examples/node/node_modules, which `make setup` installs where there is npm")
    answer, stream, turn, first, refused = output_of(node, str(NODE / "first_steps.mjs"), echo.address)
    assert answer == 'generate: "The capital of France isThe capital of", 8 tokens'
    assert stream.startswith("stream: One, two, three,One,")
    assert turn.endswith("finished by FINISH_REASON_LENGTH")
    assert first.startswith('first words: "Once')
    assert refused.startswith("refused: INVALID_FIELD, sampling.temperature: ")
