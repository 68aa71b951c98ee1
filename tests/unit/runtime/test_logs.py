"""Logs are one JSON object a line, whoever writes them."""

import json
import subprocess
import sys
from typing import Any

import pytest


def _log(level: str, program: str) -> list[dict[str, Any]]:
    """What a process of its own writes; logs are set up once a process."""
    setup = (
        f"import logging, warnings, structlog; from services.runtime import logs; logs.configure('actor', '{level}')\n"
    )
    done = subprocess.run([sys.executable, "-c", setup + program], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_a_line_says_when_how_bad_who_and_what_in_this_order() -> None:
    (line,) = _log("info", "structlog.get_logger().info('step.planned', step=3, text='é\\n')")
    assert list(line) == ["time", "level", "service", "event", "step", "text"]
    assert line["time"].endswith("Z")
    assert {**line, "time": ""} == {
        "time": "",
        "level": "info",
        "service": "actor",
        "event": "step.planned",
        "step": 3,
        "text": "é\n",
    }


@pytest.mark.parametrize(
    ("level", "events"),
    [("debug", ["debug", "info", "warning", "error"]), ("warning", ["warning", "error"]), ("error", ["error"])],
)
def test_lines_below_the_level_are_left_out(level: str, events: list[str]) -> None:
    program = (
        "log = structlog.get_logger()\nfor level in ('debug', 'info', 'warning', 'error'): getattr(log, level)(level)"
    )
    assert [line["event"] for line in _log(level, program)] == events


def test_an_exception_is_a_field_of_its_line() -> None:
    (line,) = _log(
        "info",
        "try: 1 / 0\nexcept ZeroDivisionError: structlog.get_logger().error('it.failed', exc_info=True)",
    )
    assert line["event"] == "it.failed"
    assert line["exception"].endswith("ZeroDivisionError: division by zero")


def test_values_that_json_does_not_know_are_shown_as_python_shows_them() -> None:
    (line,) = _log("info", "structlog.get_logger().info('it.is', value=int)")
    assert line["value"] == "<class 'int'>"


def test_what_libraries_log_and_warn_becomes_lines_too() -> None:
    library = "logging.getLogger('lib').warning('%d apples', 3); logging.getLogger('lib').info('unheard')\n"
    lines = _log("info", library + "warnings.warn('old')")
    assert [(line["event"], line["library"]) for line in lines] == [
        ("library.message", "lib"),
        ("library.message", "py.warnings"),
    ]
    assert lines[0]["message"] == "3 apples"
    assert "UserWarning: old" in lines[1]["message"]


def test_the_level_changes_while_the_process_runs() -> None:
    program = (
        "log = structlog.get_logger(); log.debug('unheard'); logs.set_level('debug'); log.debug('heard')\n"
        "logs.set_level('error'); log.warning('unheard'); logging.getLogger('lib').warning('unheard')\n"
        "log.error('heard'); logging.getLogger('lib').error('heard')"
    )
    assert [line["event"] for line in _log("info", program)] == ["heard", "heard", "library.message"]
