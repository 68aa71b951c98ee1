"""A lawful rig whose executor compiles constraints: when, in which order, and whether, is for the test to say."""

from services.scheduler.core.policy import Policy
from services.scheduler.core.state import Limits
from services.wire.messages import FailureReason, FinishReason, Prepared, StepPlan
from tests.proof.laws import LawfulRig
from tests.proof.rules import EOS
from tests.proof.simulated_executor import SimulatedExecutor, alone
from tests.unit.scheduler.rig import Shape


class ConstrainedRig(LawfulRig):
    """compiles_at_once: each turn brings an answer; else only `compile` does. late: answers of the dead."""

    executor: SimulatedExecutor

    def __init__(self, bounds: Limits, policy: Policy, shape: Shape) -> None:
        self.compiles_at_once = True
        self.late: list[Prepared] = []
        super().__init__(bounds, policy=policy, executor=SimulatedExecutor, **vars(shape))
        self.watch(alone)

    def plan(self) -> StepPlan | None:
        """What is to be compiled goes ahead of the plan, as the shell sends it."""
        for message in self.scheduler.take_constraints():
            self.executor.tell(message)
        return super().plan()

    def turn(self) -> bool:
        """Compiling comes last: in a turn that only asked for it something happened all the same."""
        has_run = super().turn()
        return (self.compiles_at_once and self.compile(0)) or has_run

    def compile(self, which: int) -> bool:
        """One of those asked for is compiled, or a late answer arrives; False if there is neither."""
        numbers = list(self.executor.asked)
        if not numbers and not self.late:
            return False
        which %= len(numbers) + len(self.late)
        self.prepared(
            self.executor.compile(numbers[which]) if which < len(numbers) else self.late.pop(which - len(numbers))
        )
        return True

    def lose_executor(self) -> None:
        self._bury()
        super().lose_executor()

    def open_executor(self) -> None:
        if self.num_instances:
            self._bury()
        super().open_executor()

    def _bury(self) -> None:
        self.late += [self.executor.compile(number) for number in list(self.executor.asked)]

    def check_all_ended(self, interfered: set[str], judged: bool) -> None:
        super().check_all_ended(interfered, judged)
        for key, close in self.closes.items():
            if close.failure == FailureReason.CONSTRAINT_INVALID:
                is_wrong = self.expected[key] == ([], FinishReason.FAILED)
                assert is_wrong or "died" in close.detail, f"{key}: its constraint compiles"

    def summary(self) -> dict[str, int]:
        num_complete = sum(tokens[-1:] == [EOS] for tokens in self.outputs.values())
        return {**super().summary(), "complete": num_complete}
