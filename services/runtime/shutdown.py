"""How a server goes down: the order of signals to its processes, as a pure state machine.

In come what the operator asked, which process ended and how, and the time; out come the signals to send. Knows no
process, no clock and no signal handler (supervisor.py). Rules: the gateway goes first, since it alone can still answer
clients; the others follow when it is gone; whoever does not go in time is killed. A process that ends unasked ends the
server, exit code 1.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from signal import SIGKILL, SIGTERM, SIGUSR1, Signals


class Phase(Enum):
    """Where a server stands between its start and its end."""

    RUNNING = "running"
    DRAINING = "draining"  # the gateway lets its open calls finish
    ABORTING = "aborting"  # the gateway tells its open calls that the engine is dead
    STOPPING = "stopping"  # the gateway is gone, the others may go
    KILLING = "killing"


@dataclass(frozen=True)
class Patience:
    """How long each phase may take, in seconds."""

    drain_s: float
    abort_s: float = 3.0
    stop_s: float = 2.0


@dataclass(frozen=True)
class Send:
    """One signal for one process."""

    service: str
    signal: Signals


@dataclass
class Shutdown:
    """The state machine; `alive` are the processes that run, `front` the one that faces the clients."""

    alive: set[str]
    front: str
    patience: Patience
    phase: Phase = Phase.RUNNING
    exit_code: int = 0
    deadline: float = math.inf

    @property
    def is_serving(self) -> bool:
        """Whether calls may still go on, so that a process that can be replaced is worth it."""
        return self.phase in (Phase.RUNNING, Phase.DRAINING)

    @property
    def is_over(self) -> bool:
        """True once no process is left."""
        return not self.alive

    def ask(self, now: float) -> list[Send]:
        """The operator wants the server to stop; asked again, to stop at once."""
        if self.phase is not Phase.RUNNING:
            return self._kill()
        return self._front_first(Phase.DRAINING, SIGTERM, now + self.patience.drain_s)

    def ended(self, service: str, code: int, now: float) -> list[Send]:
        """A process has ended with this code, negative when a signal ended it."""
        is_expected = self._is_expected(service, code)
        self.alive.discard(service)
        if not is_expected:
            self.exit_code = 1
        if self.phase in (Phase.STOPPING, Phase.KILLING):
            return []
        if service == self.front:
            return self._stop(now)
        return [] if is_expected else self._front_first(Phase.ABORTING, SIGUSR1, now + self.patience.abort_s)

    def pass_time(self, now: float) -> list[Send]:
        """The time is now `now`; what is overdue is not waited for any longer."""
        if now < self.deadline:
            return []
        return self._kill() if self.phase is Phase.STOPPING else self._kill_front(now)

    def _is_expected(self, service: str, code: int) -> bool:
        """Whether the process was asked to end, or its end follows from another's."""
        if self.phase is Phase.DRAINING:
            # Asked before it could listen, a gateway dies of the signal itself.
            return service == self.front and code in (0, -SIGTERM)
        return self.phase is not Phase.RUNNING

    def _front_first(self, phase: Phase, signal: Signals, deadline: float) -> list[Send]:
        self.phase, self.deadline = phase, deadline
        return [Send(self.front, signal)]

    def _stop(self, now: float) -> list[Send]:
        self.phase, self.deadline = Phase.STOPPING, now + self.patience.stop_s
        return _to(self.alive, SIGTERM)

    def _kill_front(self, now: float) -> list[Send]:
        return [Send(self.front, SIGKILL), *(send for send in self._stop(now) if send.service != self.front)]

    def _kill(self) -> list[Send]:
        self.phase, self.deadline = Phase.KILLING, math.inf
        return _to(self.alive, SIGKILL)


def _to(services: Iterable[str], signal: Signals) -> list[Send]:
    return [Send(service, signal) for service in sorted(services)]
