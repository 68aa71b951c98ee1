"""How long a step of a pretended device takes, kept by sleeping.

Steps lie end to end on an absolute timeline: a step begins when its plan has arrived and the step before it has ended,
so a late wake-up is not passed on to the next step. Spends no processor time while it waits.
"""

import time
from collections.abc import Callable

from services.executor.batch import StepBatch
from services.runtime.settings import ExecutorSettings

_NS_PER_US = 1000.0
_NS_PER_S = 1e9


class Timeline:
    """When the device is free again, in CLOCK_MONOTONIC nanoseconds."""

    def __init__(
        self,
        settings: ExecutorSettings,
        now_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._fixed_ns = settings.step_fixed_us * _NS_PER_US
        self._per_token_ns = settings.step_per_token_us * _NS_PER_US
        self._per_kv_token_ns = settings.step_per_kv_token_us * _NS_PER_US
        self._now_ns = now_ns
        self._sleep = sleep
        self._free_at = 0

    def duration_ns(self, batch: StepBatch) -> int:
        """What the step costs; a step without rows costs nothing."""
        if not batch.num_rows:
            return 0
        num_read = int(batch.kv_lens.sum())
        return int(self._fixed_ns + self._per_token_ns * batch.num_tokens + self._per_kv_token_ns * num_read)

    def pass_step(self, batch: StepBatch) -> tuple[int, int] | None:
        """Return when the step is over, with its beginning and end; None for a step that takes no time."""
        duration = self.duration_ns(batch)
        if not duration:
            return None
        began_at = max(self._free_at, batch.received_ns)
        self._free_at = began_at + duration
        remaining = self._free_at - self._now_ns()
        if remaining > 0:
            self._sleep(remaining / _NS_PER_S)
        return began_at, self._free_at
