"""Logs: one JSON object a line on stderr, from our own code (structlog) and from libraries (logging, warnings) alike.

Every line carries time, level, service and event; event names are dotted constants ("service.ready"), everything that
varies is a field beside them. A line is written in one piece, so that four processes can share one stderr. The level
may be changed while the process runs.
"""

import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import msgspec
import structlog

from services.runtime.settings import LogLevel


def configure(service: str, level: LogLevel) -> None:
    """Set up the logs of this process, once, before anything is logged."""
    structlog.configure(
        processors=[
            _drop_below_level,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            _renderer(service),
        ],
        # Loggers are cached, filters of theirs would be for good: the level is looked at line by line.
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.BytesLoggerFactory(sys.stderr.buffer),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Bridge()], force=True)
    logging.captureWarnings(True)
    set_level(level)


def set_level(level: str) -> None:
    """Write lines of this level and above from now on; those of libraries from warnings on, whatever the level."""
    _lowest.number = _NUMBERS[level]
    logging.getLogger().setLevel(max(_lowest.number, logging.WARNING))


class _Lowest:
    number = logging.NOTSET


_lowest = _Lowest()
_NUMBERS: Mapping[str, int] = {name.lower(): number for name, number in logging.getLevelNamesMapping().items()}


def _drop_below_level(_logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if _NUMBERS[method] < _lowest.number:
        raise structlog.DropEvent
    return event


def _renderer(service: str) -> Callable[[Any, str, MutableMapping[str, Any]], bytes]:
    def render(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> bytes:
        first = {
            "time": event.pop("time"),
            "level": event.pop("level"),
            "service": service,
            "event": event.pop("event"),
        }
        return msgspec.json.encode({**first, **event}, enc_hook=repr)

    return render


class _Bridge(logging.Handler):
    """What libraries log, as lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno,
            "library.message",
            library=record.name,
            message=record.getMessage(),
            exc_info=record.exc_info,
        )
