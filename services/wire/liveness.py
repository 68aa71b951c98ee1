"""Liveness: showing that this end lives, and noticing that another no longer does.

Every sender puts a heartbeat on each of its outlets once in every_s; a receiver counts a sender as dead after death_s
without any frame. Whoever was never heard is not dead but not yet there. Time comes in as an argument, and is to be
looked at right after receiving.
"""

from collections.abc import Callable, Iterable
from typing import Any

from services.wire.link import AsyncInlet, Inlet, Outlet


class Heart:
    """The heartbeat of one process. It starts to beat when the process is ready to serve."""

    def __init__(
        self, outlets: Iterable[Outlet[Any]], every_s: float, on_beat: Callable[[], None] = lambda: None
    ) -> None:
        self._outlets = tuple(outlets)
        self._every_s = every_s
        self._on_beat = on_beat
        self._due = float("-inf")

    def beat(self, now: float) -> None:
        """Send one heartbeat on every outlet, if one is due."""
        if now < self._due:
            return
        self._due = now + self._every_s
        for outlet in self._outlets:
            outlet.heartbeat()
        self._on_beat()


def silent_senders(inlet: Inlet[Any] | AsyncInlet[Any], now: float, death_s: float) -> list[int]:
    """The senders heard once but not in the last death_s seconds."""
    return [sender for sender, heard in inlet.last_heard().items() if now - heard > death_s]


def is_silent(inlet: Inlet[Any] | AsyncInlet[Any], now: float, death_s: float) -> bool:
    """Whether all senders are silent, and there was one: for a link with one peer, which may begin anew."""
    heard = inlet.last_heard()
    return bool(heard) and len(silent_senders(inlet, now, death_s)) == len(heard)
