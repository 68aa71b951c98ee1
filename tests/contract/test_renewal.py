"""The laws of a link whose receiver or sender is replaced while the other end goes on; over ipc, tcp, and in memory."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.wire.frames import Sealer
from services.wire.link import Inlet, LinkFull, RenewableOutlet
from services.wire.links import Poller, open_inlet, open_renewable_outlet
from services.wire.memory import memory_link
from services.wire.messages import Credit, FeedbackMessage
from services.wire.topology import FEEDBACK
from tests.contract.ends import PATIENCE_S, WORLDS, Ends, collect, open_ends
from tests.ports import free_port

OLD, NEW = Credit("old", 1), Credit("new", 2)


@pytest.fixture(params=WORLDS)
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ends]:
    with open_ends(request.param, tmp_path) as both:
        yield both


def _assert_quiet(ends: Ends, inlet: Inlet[FeedbackMessage]) -> None:
    """Nothing comes, not even a heartbeat, while whoever looks for the receiver could find it many times over."""
    for _ in range(5):
        ends.wait()
        assert inlet.receive() == []
    assert dict(inlet.last_heard()) == {}


def _send_until_gone(outlet: RenewableOutlet[FeedbackMessage]) -> None:
    """Send until the outlet notices that its receiver is gone."""
    for _ in range(4000):
        try:
            outlet.send(OLD)
        except LinkFull:
            return
    raise AssertionError("the receiver is gone, and everything was taken")


def test_a_renewed_outlet_speaks_from_the_beginning_to_the_receiver_that_is_there_now(ends: Ends) -> None:
    outlet = ends.renewable()
    for open_receiver in (ends.inlet, ends.successor, ends.successor):
        receiver = open_receiver()
        outlet.renew()
        sent: list[FeedbackMessage] = [Credit("g", number) for number in range(50)]
        for message in sent:
            outlet.send(message)
        outlet.heartbeat()
        assert collect(ends, receiver, len(sent)) == sent


def test_what_was_meant_for_one_receiver_never_reaches_the_next(ends: Ends) -> None:
    outlet, first = ends.renewable(), ends.inlet()
    outlet.renew()
    outlet.send(Credit("g", 0))
    collect(ends, first, 1)
    for _ in range(100):
        outlet.send(OLD)  # and nobody reads
    second = ends.successor()
    outlet.heartbeat()
    _assert_quiet(ends, second)
    outlet.renew()
    outlet.send(NEW)
    assert collect(ends, second, 1) == [NEW]
    assert second.receive() == []


def test_an_outlet_whose_receiver_is_gone_is_at_its_bound(ends: Ends) -> None:
    outlet, first = ends.renewable(), ends.inlet()
    outlet.renew()
    outlet.send(OLD)
    collect(ends, first, 1)
    second = ends.successor()
    ends.wait()
    _send_until_gone(outlet)
    outlet.heartbeat()
    _assert_quiet(ends, second)


def test_a_closed_outlet_says_nothing_until_it_is_renewed(ends: Ends) -> None:
    outlet, inlet = ends.renewable(), ends.inlet()
    outlet.renew()
    outlet.send(OLD)
    collect(ends, inlet, 1)
    heard = dict(inlet.last_heard())
    outlet.close()
    outlet.heartbeat()
    ends.wait()
    assert inlet.receive() == []
    assert dict(inlet.last_heard()) == heard
    outlet.renew()
    outlet.send(NEW)
    assert collect(ends, inlet, 1) == [NEW]
    assert len(inlet.last_heard()) == 2


def test_a_renewed_memory_outlet_takes_back_what_was_not_received() -> None:
    outlet, inlet = memory_link(FEEDBACK, high_water_mark=2)
    for _ in range(2):
        outlet.send(OLD)
    outlet.renew()
    for _ in range(2):
        outlet.send(NEW)
    with pytest.raises(LinkFull):
        outlet.send(NEW)
    assert inlet.receive() == [NEW, NEW]


def test_a_forgotten_sender_was_never_heard_and_is_not_listened_to(ends: Ends) -> None:
    dead, alive, inlet = ends.outlet(sealer=Sealer(7)), ends.outlet(sealer=Sealer(8)), ends.inlet()
    for outlet in (dead, alive):
        outlet.send(OLD)
    collect(ends, inlet, 2)
    inlet.forget(7)
    assert list(inlet.last_heard()) == [8]
    dead.send(OLD)
    dead.heartbeat()
    ends.outlet(sealer=Sealer(7, number=99)).send(OLD)  # not even held to its numbers
    alive.send(NEW)
    assert collect(ends, inlet, 1) == [NEW]
    for _ in range(3):
        ends.wait()
        assert inlet.receive() == []
    assert list(inlet.last_heard()) == [8]


def test_a_sender_that_was_never_heard_may_be_forgotten(ends: Ends) -> None:
    outlet, inlet = ends.outlet(sealer=Sealer(7)), ends.inlet()
    inlet.forget(7)
    outlet.send(OLD)
    _assert_quiet(ends, inlet)


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_receiver_killed_over_unread_messages_is_replaced_on_its_address(transport: str, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/feedback" if transport == "ipc" else f"tcp://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "tests.contract.counting_reader", address, "1000000"]
    with (
        closing(open_renewable_outlet(FEEDBACK, address, high_water_mark=100_000)) as outlet,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader,
    ):
        try:
            assert reader.stdout is not None and reader.stdout.readline() == "bound\n"
            outlet.renew()
            reader.send_signal(signal.SIGSTOP)
            for number in range(20_000):  # more than the wire takes: the outlet holds the rest
                outlet.send(Credit("g" * 200, number))
        finally:
            reader.kill()
            reader.wait(PATIENCE_S)
        with closing(open_inlet(FEEDBACK, address)) as inlet, closing(Poller(inlet)) as poller:
            poller.wait(0.5)
            assert inlet.receive() == []
            outlet.renew()
            outlet.send(NEW)
            received: list[FeedbackMessage] = []
            while not received:
                poller.wait(PATIENCE_S)
                received = inlet.receive()
            assert received == [NEW]
