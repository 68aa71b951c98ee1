"""A server taken away under load, as a cluster does it: health first, then refusals, and every call is told its end."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem import NO_RETRIES, Client, TandemError, errors
from tandem.operators import Operator
from tandem.v1 import control_pb2 as pb
from tests.e2e.processes import Settings
from tests.e2e.serving import Serving, serving

# A token takes 2 ms: the short streams end within the grace period on any machine, the long ones on none.
ECHO: Settings = {
    "executor": {"backend": "echo", "step_fixed_us": 2000.0},
    "scheduler": {"max_num_seqs": 32},
    "gateway": {"listen": "127.0.0.1:0", "drain_delay_s": 1.0, "drain_s": 5.0},
}
SHORT, LONG = 300, 8000
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass
class Story:
    """What happened to clients, in order, as they saw it."""

    events: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, event: str) -> None:
        with self.lock:
            self.events.append(event)

    def first(self, event: str) -> int:
        """Where it first happened."""
        return self.events.index(event)


def watch_health(address: str, story: Story, is_watching: threading.Event) -> None:
    """Tell every change, until the stream is cut."""
    with grpc.insecure_channel(address) as channel:
        try:
            for reply in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
                story.tell("health " + health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
                is_watching.set()
        except grpc.RpcError:
            story.tell("health cut")


def keep_calling(address: str, story: Story) -> None:
    """One short call after the other, each begun when it is told, until nobody answers."""
    with Client(address, retries=NO_RETRIES) as client:
        while True:
            story.tell("begun")
            try:
                client.generate([5], max_tokens=3, timeout_s=30)
                story.tell("served")
            except errors.Draining as refusal:
                is_in_order = refusal.code is grpc.StatusCode.UNAVAILABLE and refusal.retry_after_s is not None
                story.tell("refused" if is_in_order else f"refused with {refusal.details}")
                time.sleep(0.02)
            except (errors.Unavailable, errors.Cancelled):
                story.tell("gone")
                return


@dataclass
class Stream:
    """One stream, read on a thread of its own."""

    num_tokens: int = 0
    is_finished: bool = False
    error: TandemError | None = None

    def read(self, client: Client, max_tokens: int, has_begun: threading.Semaphore) -> None:
        try:
            with client.stream_generate([7, 8], max_tokens=max_tokens, ignore_eos=True, timeout_s=60) as chunks:
                for chunk in chunks:
                    if not self.num_tokens:
                        has_begun.release()
                    self.num_tokens += chunk.num_tokens
                    self.is_finished |= chunk.finish is not None
        except TandemError as error:
            self.error = error


@contextmanager
def under_load(address: str, story: Story) -> Iterator[tuple[list[Stream], list[Stream]]]:
    """Short and long streams that have begun, a watcher of health, and new calls all the time."""
    shorts, longs = [Stream() for _ in range(8)], [Stream() for _ in range(4)]
    is_watching, has_begun = threading.Event(), threading.Semaphore(0)
    with Client(address, retries=NO_RETRIES) as client:
        threads = [threading.Thread(target=watch_health, args=(address, story, is_watching))]
        threads += [threading.Thread(target=s.read, args=(client, LONG, has_begun)) for s in longs]
        threads += [threading.Thread(target=s.read, args=(client, SHORT, has_begun)) for s in shorts]
        threads += [threading.Thread(target=keep_calling, args=(address, story)) for _ in range(4)]
        for thread in threads:
            thread.start()
        is_watching.wait(30)
        for _ in (*shorts, *longs):
            assert has_begun.acquire(timeout=30)
        yield shorts, longs
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a client was never told its end"


def test_sigterm_under_load_tells_health_first_and_everybody_the_end() -> None:
    story = Story()
    with serving(ECHO) as server:
        with under_load(server.address, story) as (shorts, longs):
            server.process.process.send_signal(signal.SIGTERM)
            assert server.process.wait_end() == 0, server.process.log.read_text()
        turned = story.first("health NOT_SERVING")
        assert "health SERVING" in story.events[:turned]
        refused = story.first("refused")
        assert turned < refused
        assert not [event for event in story.events if event.startswith("refused with")]
        # Who had not heard yet was served; who came after the delay never was.
        assert "begun" in story.events[turned:refused] and "served" in story.events[turned:refused]
        begun_late = story.events[refused:]
        assert begun_late.count("served") <= 4, "only calls that were under way"
        assert all(stream.is_finished and stream.num_tokens == SHORT for stream in shorts)
        for stream in longs:
            assert isinstance(stream.error, errors.Draining) and not stream.is_finished
            assert stream.error.code is grpc.StatusCode.UNAVAILABLE
            assert int(stream.error.details.trailers["x-tandem-completion-tokens"]) == stream.num_tokens > 0
            assert stream.error.details.trailers["x-tandem-prompt-tokens"] == "2"
        ended = [entry for entry in server.entries() if entry["event"] == "call.ended" and "request_id" in entry]
        assert sum(entry.get("reason") == "DRAINING" for entry in ended) >= len(longs)


def test_an_operators_drain_ends_no_call_and_no_process() -> None:
    with (
        serving(ECHO) as server,
        Client(server.address, retries=NO_RETRIES) as client,
        Operator(server.admin_address) as operator,
    ):
        # Longer than drain_delay_s, after which the calls are counted.
        stream = client.stream_generate([7, 8], max_tokens=5 * SHORT, ignore_eos=True)
        next(stream)
        assert operator.drain() == 1
        assert operator.server_info().state == pb.SERVER_STATE_DRAINING
        assert list(stream)[-1].finish is not None
        assert operator.drain(wait=True) == 0
        assert server.process.is_running


class TestOrders:
    """Orders to a server of real processes."""

    def test_a_paused_server_lets_calls_wait_and_goes_on(self, echo: Serving) -> None:
        with Client(echo.address) as client, Operator(echo.admin_address) as operator:
            operator.pause()
            try:
                stream = client.stream_generate([5, 6], max_tokens=4)
                with_waiting = (load for load in operator.watch_load(0.1) if load.num_waiting)
                load = next(with_waiting)
                with_waiting.close()
                assert load.is_paused and load.num_running == 0
                with_deadline = None
                try:
                    client.generate([5], max_tokens=4, timeout_s=0.2)
                except errors.DeadlineExceeded as error:
                    with_deadline = error
                assert with_deadline is not None
            finally:
                operator.resume()
            assert list(stream)[-1].finish is not None

    def test_a_cancelled_call_is_told_so_and_frees_its_blocks(self, echo: Serving) -> None:
        with Client(echo.address) as client, Operator(echo.admin_address) as operator:
            streams = [client.stream_generate([5], max_tokens=400, ignore_eos=True, request_id=i) for i in "abc"]
            for stream in streams:
                next(stream)
            assert operator.cancel(["a", "nobody"]).unknown_request_ids == ["nobody"]
            reply = operator.cancel(everything=True)
            assert reply.num_cancelled == 2
            for stream in streams:
                error = None
                try:
                    list(stream)
                except errors.Cancelled as cancelled:
                    error = cancelled
                assert error is not None
            state = echo.idle(echo.position())
            assert state["num_free_blocks"] == state["num_blocks"]

    def test_levels_of_logs_reach_every_process(self, echo: Serving) -> None:
        with Client(echo.address) as client, Operator(echo.admin_address) as operator:

            def lines(service: str) -> int:
                start = echo.position()
                client.generate([5, 6], max_tokens=2)
                echo.told(lambda entry: entry["event"] == "call.ended" and "request_id" in entry, start)
                return sum(entry["service"] == service and entry["level"] == "debug" for entry in echo.entries(start))

            assert lines("scheduler")
            operator.set_log_level("info", ["scheduler"])
            assert not lines("scheduler")
            assert lines("gateway")
            operator.set_log_level("debug")
            assert lines("scheduler")

    def test_a_flushed_cache_finds_nothing(self, echo: Serving) -> None:
        prompt = [9] * 65
        with Client(echo.address) as client, Operator(echo.admin_address) as operator:
            client.generate(prompt, max_tokens=1)
            assert client.generate(prompt, max_tokens=1).usage.cached_tokens == 64
            assert operator.flush_prefix_cache() >= 4
            assert client.generate(prompt, max_tokens=1).usage.cached_tokens == 0


def test_a_scrape_agrees_with_what_clients_were_told(echo: Serving) -> None:
    before = echo.metrics()
    with Client(echo.address) as client:
        answers = [client.generate([7] * 40, max_tokens=10, ignore_eos=True) for _ in range(3)]
    echo.idle(echo.position())  # the engine tells its counts once a second
    after = echo.metrics()
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    assert grown["vllm:generation_tokens_total"] == sum(answer.usage.completion_tokens for answer in answers) == 30
    assert grown["vllm:prompt_tokens_total"] == grown["vllm:prefix_cache_queries_total"] == 120
    assert grown["vllm:prefix_cache_hits_total"] == sum(answer.usage.cached_tokens for answer in answers) > 0
    assert grown["vllm:inter_token_latency_seconds_count"] == 27
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert grown[f"vllm:{name}_count"] == 3
    assert grown["tandem_step_tokens_count"] == grown["tandem_steps_total"] > 0
    # The record is closed a moment after the client's last word was written.
    assert grown["tandem_call_seconds_sum"] >= sum(answer.timings.e2e_ms for answer in answers) / 1000
    assert after["vllm:kv_cache_usage_perc"] == after["vllm:num_requests_running"] == 0
