"""The product's executor core as the rig drives it, around any backend: plans queue up, `step` runs the oldest."""

from collections import deque

import msgspec

from services.executor.backend import Backend
from services.executor.core import ExecutorCore
from services.wire.messages import Hello, Ready, StepPlan, StepResult


class CoreExecutor:
    """num_blocks: what the scheduler is told, at most what the backend has; None = that."""

    def __init__(self, backend: Backend, instance: int, num_blocks: int | None = None) -> None:
        self._core = ExecutorCore(backend, instance, now_ns=lambda: 0)
        self._num_blocks = num_blocks or backend.capacity.num_blocks
        self.plans: deque[StepPlan] = deque()

    def ready(self, epoch: int) -> Ready:
        assert epoch == 0, "later epochs are answered by hello"
        return msgspec.structs.replace(self._core.opening(), num_blocks=self._num_blocks)

    def hello(self, hello: Hello) -> Ready:
        self.plans.clear()
        (ready,) = self._core.handle(hello)
        assert isinstance(ready, Ready)
        return msgspec.structs.replace(ready, num_blocks=self._num_blocks)

    def receive(self, plan: StepPlan) -> None:
        self.plans.append(plan)

    def step(self, *, fails: bool = False, poison: int | None = None) -> StepResult:
        assert not fails and poison is None, "no faults here"
        (result,) = self._core.handle(self.plans.popleft())
        assert isinstance(result, StepResult)
        return result
