"""How many cores a process may compute on."""

import os
from pathlib import Path

from services.executor.cores import num_cores


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu in os.sched_getaffinity(0):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text("0-1023\n")
    assert num_cores(tmp_path) == 1


def test_without_a_topology_every_processor_counts(tmp_path: Path) -> None:
    assert num_cores(tmp_path) == len(os.sched_getaffinity(0))
