"""What happened in a virtual run: a record for each request and facts of each step. Facts only; metrics.py sums up."""

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from services.scheduler.virtual.workload import Demand


class StepFacts(NamedTuple):
    """One planned step. num_slots: rows it could have had. num_waiting: sequences still waiting when it was planned."""

    step: int
    num_rows: int
    num_tokens: int
    num_slots: int
    num_waiting: int

    @property
    def num_idle(self) -> int:
        return self.num_slots - self.num_rows


@dataclass(slots=True)
class RequestRecord:
    """One request; times are virtual nanoseconds. gaps: those between its tokens as the client hears them."""

    demand: Demand
    t_arrived: int
    t_first: int = 0
    t_last: int = 0
    t_end: int = 0
    num_stays: int = 0  # times it came onto the executor
    gaps: "array[int]" = field(default_factory=lambda: array("q"))

    @property
    def ttft_ns(self) -> int:
        return self.t_first - self.t_arrived

    @property
    def num_preemptions(self) -> int:
        return max(0, self.num_stays - 1)

    def note_token(self, now: int) -> None:
        if self.t_first:
            self.gaps.append(now - self.t_last)
        else:
            self.t_first = now
        self.t_last = now


@dataclass(slots=True)
class Journal:
    """records: by number, in order of arrival."""

    records: list[RequestRecord] = field(default_factory=list)
    steps: list[StepFacts] = field(default_factory=list)
    num_wasted_rows: int = 0
    num_copied_blocks: int = 0

    def open(self, demand: Demand, now: int) -> int:
        """A request arrives; its number."""
        self.records.append(RequestRecord(demand, now))
        return len(self.records) - 1

    @property
    def num_preemptions(self) -> int:
        return sum(record.num_preemptions for record in self.records)
