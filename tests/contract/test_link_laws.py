"""The laws of a link (services/wire/link.py): one body, run over ZeroMQ with ipc, with tcp, and in memory."""

import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from services.wire.frames import Sealer
from services.wire.link import Inlet, LinkBroken, LinkFull, Outlet
from services.wire.messages import Credit, FeedbackMessage, SequenceKey, StopHit
from services.wire.shared import SharedOutlet
from tests.contract.ends import WORLDS, Ends, collect, open_ends


@pytest.fixture(params=WORLDS)
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ends]:
    with open_ends(request.param, tmp_path) as both:
        yield both


def _fill(outlet: Outlet[FeedbackMessage], text: str = "") -> int:
    """Send until the outlet is full; how many messages it took."""
    for number in count():
        try:
            outlet.send(Credit(text, number))
        except LinkFull:
            return number
        assert number < 100_000, "the outlet has no bound"
    raise AssertionError("unreachable")


def _receive_until_broken(ends: Ends, inlet: Inlet[FeedbackMessage]) -> None:
    for _ in range(200):
        ends.wait()
        inlet.receive()


def test_messages_arrive_whole_in_order_and_once(ends: Ends) -> None:
    outlet, inlet = ends.outlet(), ends.inlet()
    sent: list[FeedbackMessage] = [Credit("é" * (number * number), number) for number in range(300)]
    sent.append(StopHit(SequenceKey("gateway-0", "r", 2**63, 1), 5))
    for message in sent:
        outlet.send(message)
    assert collect(ends, inlet, len(sent)) == sent
    assert inlet.receive() == []


def test_an_empty_inlet_gives_an_empty_list(ends: Ends) -> None:
    inlet = ends.inlet()
    assert inlet.receive() == []
    assert dict(inlet.last_heard()) == {}


def test_what_is_sent_before_the_receiver_is_there_waits_for_it(ends: Ends) -> None:
    outlet = ends.outlet()
    outlet.heartbeat()
    sent = [Credit("g", number) for number in range(50)]
    for message in sent:
        outlet.send(message)
    assert collect(ends, ends.inlet(), 50) == sent


def test_at_its_bound_an_outlet_refuses_and_nothing_taken_is_lost(ends: Ends) -> None:
    outlet = ends.outlet(high_water_mark=8)
    assert _fill(outlet) >= 8  # nobody has bound yet: the outlet alone holds them
    inlet = ends.inlet()
    collect(ends, inlet, 8)
    # A receiver that does not read: whatever the wire holds in between, the bound is felt in the end.
    num_taken = _fill(outlet, "x" * 100_000)
    received = collect(ends, inlet, num_taken)
    assert [message.seq for message in received if isinstance(message, Credit)] == list(range(num_taken))
    outlet.send(Credit("after", 1))
    assert collect(ends, inlet, 1) == [Credit("after", 1)]


def test_a_heartbeat_at_the_bound_does_nothing(ends: Ends) -> None:
    outlet = ends.outlet(high_water_mark=4)
    _fill(outlet)
    outlet.heartbeat()
    inlet = ends.inlet()
    collect(ends, inlet, 4)
    outlet.heartbeat()
    outlet.send(Credit("after", 1))
    assert collect(ends, inlet, 1) == [Credit("after", 1)]


def test_a_receiver_that_pauses_finds_everything_when_it_resumes(ends: Ends) -> None:
    outlet, inlet = ends.outlet(), ends.inlet()
    outlet.send(Credit("g", 0))
    collect(ends, inlet, 1)
    sent = [Credit("g" * 100, number) for number in range(4000)]
    for message in sent:
        outlet.send(message)
    assert collect(ends, inlet, len(sent)) == sent


def test_several_senders_each_keep_their_order(ends: Ends) -> None:
    outlets, inlet = [ends.outlet() for _ in range(3)], ends.inlet()
    for number in range(100):
        for name, outlet in enumerate(outlets):
            outlet.send(Credit(str(name), number))
    received = collect(ends, inlet, 300)
    for name in range(3):
        seqs = [message.seq for message in received if isinstance(message, Credit) and message.gateway == str(name)]
        assert seqs == list(range(100))
    assert len(inlet.last_heard()) == 3


def test_a_heartbeat_is_swallowed_and_its_time_noted(ends: Ends) -> None:
    outlet, inlet = ends.outlet(sealer=Sealer(7)), ends.inlet()
    outlet.heartbeat()
    outlet.send(Credit("g", 1))
    collect(ends, inlet, 1)
    first = inlet.last_heard()[7]
    outlet.heartbeat()
    for _ in range(200):
        ends.wait()
        assert inlet.receive() == []
        if inlet.last_heard()[7] > first:
            break
    assert inlet.last_heard()[7] > first


def test_a_missing_number_breaks_the_link(ends: Ends) -> None:
    inlet = ends.inlet()
    ends.outlet(sealer=Sealer(7)).send(Credit("g", 0))
    collect(ends, inlet, 1)
    ends.outlet(sealer=Sealer(7, number=2)).send(Credit("g", 2))
    with pytest.raises(LinkBroken, match="sender 7 sent number 2 where 1 was due"):
        _receive_until_broken(ends, inlet)


def test_a_missing_beginning_breaks_the_link(ends: Ends) -> None:
    inlet = ends.inlet()
    ends.outlet(sealer=Sealer(7, number=1)).heartbeat()
    with pytest.raises(LinkBroken, match="number 1 where 0 was due"):
        _receive_until_broken(ends, inlet)


def test_a_repeated_number_breaks_the_link(ends: Ends) -> None:
    inlet = ends.inlet()
    for _ in range(2):
        ends.outlet(sealer=Sealer(7)).send(Credit("g", 0))
    with pytest.raises(LinkBroken, match="number 0 where 1 was due"):
        _receive_until_broken(ends, inlet)


def test_a_frame_shorter_than_its_header_breaks_the_link(ends: Ends) -> None:
    class Torn(Sealer):
        def seal(self, payload: bytes = b"") -> bytes:
            return super().seal(payload)[:15]

    inlet = ends.inlet()
    ends.outlet(sealer=Torn(7)).heartbeat()
    with pytest.raises(LinkBroken, match="15 bytes"):
        _receive_until_broken(ends, inlet)


def test_a_message_of_another_union_breaks_the_link(ends: Ends) -> None:
    class Garbled(Sealer):
        def seal(self, payload: bytes = b"") -> bytes:
            return super().seal(b"\x91\x63")  # a tag that the union does not hold

    inlet = ends.inlet()
    ends.outlet(sealer=Garbled(7)).send(Credit("g", 0))
    with pytest.raises(LinkBroken, match="Invalid value 99"):
        _receive_until_broken(ends, inlet)


def test_closing_twice_is_closing(ends: Ends) -> None:
    both: list[Any] = [ends.outlet(), ends.inlet()]
    for end in both:
        end.close()
        end.close()


def test_threads_that_share_an_outlet_lose_nothing_and_keep_their_order(ends: Ends) -> None:
    outlet, inlet = SharedOutlet(ends.outlet()), ends.inlet()
    names, each = [f"thread-{number}" for number in range(4)], 200

    def send(name: str) -> None:
        for number in range(each):
            outlet.send(Credit(name, number))
            outlet.heartbeat()

    threads = [threading.Thread(target=send, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    arrived = collect(ends, inlet, len(names) * each)
    for thread in threads:
        thread.join()
    for name in names:
        own = [message for message in arrived if isinstance(message, Credit) and message.gateway == name]
        assert own == [Credit(name, number) for number in range(each)]
