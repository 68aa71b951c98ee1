"""What ZeroMQ links have beyond the common laws: files, pollers with wakers, errors of binding, flushing."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.wire.links import Poller, ZmqInlet, open_inlet, open_outlet
from services.wire.messages import Credit, FeedbackMessage
from services.wire.topology import FEEDBACK

# A wait that nothing ends lasts this long; a test that takes so long has failed.
LONG_S = 30.0


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/feedback"


@pytest.fixture
def inlet(address: str) -> Iterator[ZmqInlet[FeedbackMessage]]:
    with closing(open_inlet(FEEDBACK, address)) as opened:
        yield opened


def _seconds_waited(poller: Poller) -> float:
    start = time.monotonic()
    poller.wait(LONG_S)
    return time.monotonic() - start


def test_a_socket_file_left_by_a_dead_process_is_replaced(address: str, tmp_path: Path) -> None:
    bind = f"from services.wire import links, topology; import os; links.open_inlet(topology.FEEDBACK, '{address}')"
    subprocess.run([sys.executable, "-c", f"{bind}; os._exit(0)"], check=True)
    assert (tmp_path / "feedback").is_socket()
    with (
        closing(open_inlet(FEEDBACK, address)) as inlet,
        closing(open_outlet(FEEDBACK, address, 8)) as outlet,
        closing(Poller(inlet)) as poller,
    ):
        outlet.send(Credit("g", 1))
        poller.wait(LONG_S)
        assert inlet.receive() == [Credit("g", 1)]


def test_binding_where_one_cannot_says_which_link_and_why(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"feedback: cannot bind ipc://.*/absent/feedback: No such file or directory"):
        open_inlet(FEEDBACK, f"ipc://{tmp_path}/absent/feedback")


def test_a_poller_returns_for_a_message(inlet: ZmqInlet[FeedbackMessage], address: str) -> None:
    with closing(Poller(inlet)) as poller, closing(open_outlet(FEEDBACK, address, 8)) as outlet:
        outlet.send(Credit("g", 1))
        assert _seconds_waited(poller) < LONG_S
        assert inlet.receive() == [Credit("g", 1)]


def test_a_poller_returns_when_its_time_is_over(inlet: ZmqInlet[FeedbackMessage]) -> None:
    with closing(Poller(inlet)) as poller:
        start = time.monotonic()
        poller.wait(0.02)
        assert time.monotonic() - start >= 0.02
        poller.wait(0.0)


def test_a_wake_from_another_thread_ends_the_wait(inlet: ZmqInlet[FeedbackMessage]) -> None:
    with closing(Poller(inlet)) as poller:
        timer = threading.Timer(0.02, poller.waker().wake)
        timer.start()
        assert _seconds_waited(poller) < LONG_S
        timer.join()


def test_a_wake_from_a_signal_handler_ends_the_wait(inlet: ZmqInlet[FeedbackMessage]) -> None:
    with closing(Poller(inlet)) as poller:
        waker = poller.waker()
        before = signal.signal(signal.SIGALRM, lambda *_: waker.wake())
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            assert _seconds_waited(poller) < LONG_S
        finally:
            signal.signal(signal.SIGALRM, before)


def test_wakes_before_the_wait_count_once(inlet: ZmqInlet[FeedbackMessage]) -> None:
    with closing(Poller(inlet)) as poller:
        for _ in range(10_000):
            poller.waker().wake()
        assert _seconds_waited(poller) < LONG_S
        while _seconds_waited_at_most(poller, 0.02) < 0.02:
            pass  # what did not fit into one read


def _seconds_waited_at_most(poller: Poller, timeout_s: float) -> float:
    start = time.monotonic()
    poller.wait(timeout_s)
    return time.monotonic() - start


def test_a_wake_after_the_poller_is_closed_is_harmless() -> None:
    poller = Poller()
    waker = poller.waker()
    poller.close()
    poller.close()
    waker.wake()


def test_finish_sends_what_is_unsent_before_the_process_ends(inlet: ZmqInlet[FeedbackMessage], address: str) -> None:
    program = (
        "from services.wire import links, messages, topology; import os\n"
        f"outlet = links.open_outlet(topology.FEEDBACK, '{address}', 4096)\n"
        "for number in range(1000): outlet.send(messages.Credit('g' * 1000, number))\n"
        "links.finish(10.0)\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    received: list[FeedbackMessage] = []
    with closing(Poller(inlet)) as poller:
        while len(received) < 1000:
            assert _seconds_waited(poller) < LONG_S
            received += inlet.receive()
    assert received == [Credit("g" * 1000, number) for number in range(1000)]


def test_finish_does_not_wait_for_a_peer_that_is_not_there(address: str) -> None:
    program = (
        "from services.wire import links, messages, topology\n"
        f"kept, dropped = [links.open_outlet(topology.FEEDBACK, '{address}', 4096) for _ in range(2)]\n"
        "for outlet in kept, dropped: outlet.send(messages.Credit('g', 1))\n"
        "del dropped, outlet\n"
        "links.finish(0.05)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LONG_S)
