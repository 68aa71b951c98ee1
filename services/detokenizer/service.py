"""The shell of the detokenizer: TokenBatches in, TextBatches out to each gateway, StopHits and credit back.

One thread, one loop: take what has arrived, send what can be sent, wait for more. Nothing here blocks on a peer: a
gateway whose outlet is full keeps its batches pending and gets no credit, until the scheduler no longer plans its
sequences. Links and clock come in from outside, so the same service is driven by hand in one process.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from services.detokenizer.lane import NOTHING, Lane
from services.detokenizer.streams import Streams
from services.runtime import logs
from services.runtime.settings import LinkSettings
from services.wire.link import Inlet, LinkFull, Outlet
from services.wire.liveness import Heart, silent_senders
from services.wire.messages import (
    Credit,
    FeedbackMessage,
    SetDetokenizerLog,
    StopHit,
    TextMessage,
    TokenBatch,
    TokenMessage,
)

log = structlog.get_logger()

RETRY_S = 0.002  # until a full outlet is tried again; nothing tells that it has room


class PeerSilent(Exception):
    """The scheduler was heard once and is silent now: no stream will ever end."""


class Waiter(Protocol):
    """A Poller of links, or whatever waits in its place."""

    def wait(self, timeout_s: float) -> None:
        """Return when something may have arrived, when a wake came, or after timeout_s."""


class DetokenizerService:
    """`turn` is one round of the loop, `run` the loop."""

    def __init__(
        self,
        streams: Streams,
        tokens: Inlet[TokenMessage],
        texts: Mapping[str, Outlet[TextMessage]],
        feedback: Outlet[FeedbackMessage],
        max_pending: int,
    ) -> None:
        """texts: the outlet of every configured gateway, by its name."""
        self._streams = streams
        self._tokens = tokens
        self._lanes = {gateway: Lane(gateway, outlet, max_pending) for gateway, outlet in texts.items()}
        self._feedback = feedback
        self._stop_hits: deque[StopHit] = deque()  # those that the feedback outlet has not taken
        self._last_number = NOTHING  # of the newest TokenBatch

    @property
    def is_idle(self) -> bool:
        """Whether no stream is open and nothing waits to be sent."""
        return not (self._streams or self._has_unsent())

    def run(
        self,
        waiter: Waiter,
        heart: Heart,
        links: LinkSettings,
        is_stopped: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Serve until is_stopped; raises PeerSilent when the scheduler is gone.

        Streams that are open then are not waited for: the gateway goes first, and has ended its calls by itself.
        """
        while True:
            self.turn()
            now = clock()
            heart.beat(now)
            if silent_senders(self._tokens, now, links.death_s):
                log.error("peer.silent", peer="scheduler")
                raise PeerSilent(f"the scheduler has been silent for {links.death_s} s")
            if is_stopped():
                return
            waiter.wait(RETRY_S if self._has_unsent() else links.heartbeat_s)

    def turn(self) -> None:
        """Everything that can be done now without waiting."""
        for message in self._tokens.receive():
            match message:
                case TokenBatch():
                    self._absorb(message)
                case SetDetokenizerLog():
                    logs.set_level(message.level)
        self._tell_stop_hits()
        self._tell_credit()

    def _absorb(self, batch: TokenBatch) -> None:
        assert batch.number > self._last_number, f"TokenBatch {batch.number} after {self._last_number}"
        self._last_number = batch.number
        outcome = self._streams.absorb(batch)
        for gateway, text in outcome.texts.items():
            self._lanes[gateway].put(text)
        self._stop_hits += outcome.stop_hits
        self._tell_stop_hits()  # at once, however many batches have piled up: a stop not told costs rows

    def _tell_stop_hits(self) -> None:
        while self._stop_hits and self._tell(self._stop_hits[0]):
            self._stop_hits.popleft()

    def _tell_credit(self) -> None:
        """Credit is cumulative: what the feedback outlet does not take now is contained in what is told later."""
        for gateway, lane in self._lanes.items():
            lane.send()
            covered = lane.covered(self._last_number)
            if covered > lane.credited and self._tell(Credit(gateway, covered)):
                lane.credited = covered

    def _tell(self, message: FeedbackMessage) -> bool:
        try:
            self._feedback.send(message)
        except LinkFull:
            return False
        return True

    def _has_unsent(self) -> bool:
        """Whether something waits for room in an outlet, credit included."""
        lanes = self._lanes.values()
        return bool(self._stop_hits) or any(lane.credited < self._last_number for lane in lanes)
