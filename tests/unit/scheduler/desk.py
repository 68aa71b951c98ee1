"""A scheduler's shell over memory links: the far ends of all of them, an executor, and a clock moved by hand."""

from services.runtime.settings import SchedulerSettings
from services.scheduler.service import SchedulerLinks, SchedulerService
from services.wire.memory import memory_link
from services.wire.messages import Hello, StepPlan, TokenBatch
from services.wire.topology import FEEDBACK, PLAN, RESULT, STATUS, SUBMIT, TOKENS
from tests.unit.scheduler.executor_model import ExecutorModel

BOUND = 1000


class Desk:
    """The far ends of every link of one scheduler, and a clock moved by hand."""

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        self.seconds = 100.0
        clock = self.time_s
        self.submit, submit = memory_link(SUBMIT, BOUND, clock)
        self.result, self._results = memory_link(RESULT, BOUND, clock)
        self.feedback, feedback = memory_link(FEEDBACK, BOUND, clock)
        plan, self.plan = memory_link(PLAN, 8, clock)
        tokens, self.tokens = memory_link(TOKENS, BOUND, clock)
        status, self.status = memory_link(STATUS, BOUND, clock)
        other, self.other = memory_link(STATUS, BOUND, clock)
        self.links = SchedulerLinks(submit, self._results, feedback, plan, tokens, {"g": status, "h": other})
        self.lost: list[int] = []
        self.service = SchedulerService(settings or SchedulerSettings(), self.links, self.time_ns, self.lost.append)
        self.executor = ExecutorModel(1, 64, 4, 16, 512)

    def time_s(self) -> float:
        return self.seconds

    def time_ns(self) -> int:
        return int(self.seconds * 1e9)

    def silent_peer(self, death_s: float = 5.0) -> str:
        """Who is missed by now."""
        return self.service.silent_peer(self.seconds, death_s)

    def replace_executor(self, num_blocks: int = 64) -> None:
        """The executor dies, with whatever it has not received; another process takes its place and its addresses."""
        self.executor = ExecutorModel(self.executor.instance + 1, num_blocks, 4, 16, 512)
        self.plan = self.plan.successor()
        self.result = self._results.outlet()

    def open(self) -> None:
        self.result.send(self.executor.ready(0))
        self.service.turn()
        (hello,) = self.plan.receive()
        assert isinstance(hello, Hello)
        self.result.send(self.executor.hello(hello))
        self.service.turn()

    def batches(self) -> list[TokenBatch]:
        """What the text side was told since the last look."""
        return [message for message in self.tokens.receive() if isinstance(message, TokenBatch)]

    def run(self, turns: int = 50) -> None:
        """The executor answers every plan."""
        for _ in range(turns):
            self.service.turn()
            for plan in self.plan.receive():
                assert isinstance(plan, StepPlan)
                self.executor.receive(plan)
            while self.executor.plans:
                self.result.send(self.executor.step())
