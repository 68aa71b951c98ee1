"""The smg gateway in front of Tandem servers, and an HTTP client as small as its tests need."""

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.processes import PATIENCE_S, Server, Settings, server
from tests.e2e.serving import Serving
from tests.ports import free_port

HOST = "127.0.0.1"
LOOK_EVERY_S = 0.05
# Notice what comes and goes within a second, and count nobody out for longer.
FLAGS = ("--health-check-interval-secs", "1", "--health-success-threshold", "1", "--cb-timeout-duration-secs", "1")


@dataclass(frozen=True)
class Reply:
    """A whole HTTP answer."""

    status: int
    body: dict[str, Any]


class EventStream:
    """A streamed answer, event by event; closing it is a client that goes."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self._response:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                yield json.loads(line.removeprefix(b"data: "))

    def close(self) -> None:
        """Hang up."""
        self._response.close()
        self._connection.close()


@dataclass(frozen=True)
class Smg:
    """A running smg."""

    port: int
    log: Path

    def get(self, path: str) -> Reply:
        """The answer to a GET."""
        return self._whole("GET", path, None)

    def post(self, path: str, **body: Any) -> Reply:
        """The answer to a request."""
        return self._whole("POST", path, body)

    def stream(self, path: str, **body: Any) -> EventStream:
        """The answer to a request, as it comes."""
        connection = self._connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        return EventStream(connection, response)

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """Every event of a streamed answer."""
        with closing(self.stream(path, **body)) as stream:
            return list(stream)

    def send_and_go(self, path: str, after_s: float, **body: Any) -> None:
        """Ask for a whole answer and hang up before it comes."""
        with closing(self._connect()) as connection:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            time.sleep(after_s)

    def _whole(self, method: str, path: str, body: dict[str, Any] | None) -> Reply:
        with closing(self._connect()) as connection:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return Reply(response.status, json.loads(response.read()))

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE_S)


def worker(settings: Settings, port: int = 0) -> Settings:
    """These settings with the listener for smg on."""
    listeners = {"listen": f"{HOST}:0", "vllm_listen": f"{HOST}:{port}", "drain_s": 1.0}
    return {**settings, "gateway": {**settings.get("gateway", {}), **listeners}}


def vllm_address(process: Server) -> str:
    """Where a server that is ready listens for smg."""
    (file,) = process.root.glob("tandem-*/*.vllm")
    return file.read_text()


@contextmanager
def fleet(*settings: Settings) -> Iterator[list[Serving]]:
    """Several servers, started side by side; each must end cleanly, unless its test has ended it."""
    with ExitStack() as stack:
        processes = [stack.enter_context(server(each, "--log-level", "debug")) for each in settings]
        yield [Serving(process.wait_ready(), process) for process in processes]
        for process in processes:
            if process.is_running:
                process.stop()


@contextmanager
def smg(workers: Sequence[str], log: Path, *flags: str) -> Iterator[Smg]:
    """smg in front of these VllmEngine addresses, with every model that they serve ready to be asked for."""
    port = free_port()
    command = [sys.executable, "-m", "smg", "launch", "--host", HOST, "--port", str(port)]
    command += ["--prometheus-host", HOST, "--prometheus-port", str(free_port())]
    command += ["--worker-urls", *(f"grpc://{address}" for address in workers), *FLAGS, *flags]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    running = Smg(port, log)
    try:
        _wait_ready(running, process, len(workers))
        yield running
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(running: Smg, process: "subprocess.Popen[bytes]", num_workers: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not _is_ready(running, num_workers):
        assert process.poll() is None and time.monotonic() < deadline, running.log.read_text()
        time.sleep(LOOK_EVERY_S)


def _is_ready(running: Smg, num_workers: int) -> bool:
    """Whether every worker is known and every model's tokenizer has come."""
    with suppress(OSError, http.client.HTTPException):
        workers = running.get("/workers").body.get("workers", [])
        models = {each["model_id"] for each in workers if each["is_healthy"]}
        return len(workers) == num_workers and all(_answers(running, model) for model in models)
    return False


def _answers(running: Smg, model: str) -> bool:
    return running.post("/v1/completions", model=model, prompt="a", max_tokens=1).status == 200
