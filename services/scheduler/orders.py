"""What operators order: each Control is carried out at once and answered with one ControlReply to its gateway.

A log level is passed on to the processes behind the scheduler, and told again to an executor that takes another's
place. Knows no policy; the core's verbs do the work.
"""

from collections.abc import Callable, Mapping

from services.runtime import logs
from services.scheduler.core.scheduler import Scheduler
from services.wire.link import Outlet
from services.wire.messages import (
    Control,
    ControlReply,
    ControlVerb,
    Draining,
    PlanMessage,
    SetDetokenizerLog,
    SetExecutorLog,
    StatusMessage,
    TokenMessage,
)


class Orders:
    """tell_load sends every gateway the engine's load; tell_executor sends the executor a message, if there is one."""

    def __init__(
        self,
        core: Scheduler,
        status: Mapping[str, Outlet[StatusMessage]],
        tokens: Outlet[TokenMessage],
        tell_executor: Callable[[PlanMessage], None],
        tell_load: Callable[[], None],
    ) -> None:
        self._core = core
        self._status = status
        self._tokens = tokens
        self._tell_executor = tell_executor
        self._tell_load = tell_load
        self._executor_level = ""

    def carry_out(self, control: Control, now: int) -> None:
        """Do it and say so."""
        num_affected = 0
        match control.verb:
            case ControlVerb.LOAD:
                self._tell_load()
            case ControlVerb.DRAIN:
                self._core.drain()
                for outlet in self._status.values():
                    outlet.send(Draining())
            case ControlVerb.PAUSE | ControlVerb.RESUME:
                self._core.pause(control.verb == ControlVerb.PAUSE)
            case ControlVerb.CANCEL_ALL:
                num_affected = self._core.cancel_all(now)
            case ControlVerb.FLUSH_CACHE:
                num_affected = self._core.flush_cache()
            case ControlVerb.LOG_LEVEL:
                self._set_log_level(control.argument)
        self._status[control.gateway].send(ControlReply(control.number, True, num_affected=num_affected))

    def greet_executor(self) -> None:
        """An executor has been told hello: it logs as the one before it was told to."""
        if self._executor_level:
            self._tell_executor(SetExecutorLog(self._executor_level))

    def _set_log_level(self, argument: str) -> None:
        level, *services = argument.split()
        if not services or "scheduler" in services:
            logs.set_level(level)
        if not services or "detokenizer" in services:
            self._tokens.send(SetDetokenizerLog(level))
        if not services or "executor" in services:
            self._executor_level = level
            self._tell_executor(SetExecutorLog(level))
