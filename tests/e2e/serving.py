"""A whole server behind the real command, and its log: ready when a test gets it, and stopped in order afterwards."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.processes import Server, Settings, server


@dataclass
class Serving:
    """A server that is ready; its log holds its lines, one JSON object each."""

    address: str
    process: Server

    @property
    def admin_address(self) -> str:
        """Where its operators call."""
        (file,) = self.process.root.glob("tandem-*/*.admin")
        return file.read_text()

    def metrics(self) -> dict[str, float]:
        """Every sample without labels of its own, as Prometheus would read it now."""
        (file,) = self.process.root.glob("tandem-*/*.metrics")
        with urllib.request.urlopen(f"http://{file.read_text()}/metrics", timeout=10) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [sample for family in families for sample in family.samples]
        return {each.name: each.value for each in samples if each.labels.keys() == {"model_name", "engine"}}

    def entries(self, start: int = 0) -> list[dict[str, Any]]:
        """The log from a byte position on."""
        with self.process.log.open("rb") as log:
            log.seek(start)
            lines = log.read().splitlines()
        return [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]

    def position(self) -> int:
        """The end of the log by now."""
        return self.process.log.stat().st_size

    def idle(self, start: int) -> dict[str, Any]:
        """The first state of the engine, told after `start`, with nothing waiting and nothing running."""

        def is_idle(entry: dict[str, Any]) -> bool:
            return entry["event"] == "engine.load" and not entry["num_waiting"] + entry["num_running"]

        return self.told(is_idle, start)

    def told(self, is_it: Callable[[dict[str, Any]], bool], start: int = 0, within_s: float = 10.0) -> dict[str, Any]:
        """The first entry of the log after `start` that is it; waits for it."""
        deadline = time.monotonic() + within_s
        while True:
            for entry in self.entries(start):
                if is_it(entry):
                    return entry
            assert self.process.is_running and time.monotonic() < deadline, self.process.log.read_text()[-5000:]
            time.sleep(0.05)


@contextmanager
def serving(settings: Settings, *flags: str) -> Iterator[Serving]:
    """A server with these settings, by section, and flags; it must end cleanly, without a trace, after the block."""
    with server(settings, "--log-level", "debug", *flags) as process:
        yield Serving(process.wait_ready(), process)
        process.stop()
