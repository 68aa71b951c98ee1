"""Heartbeats leave when they are due, and silence is noticed only in those who were heard before."""

from services.wire.liveness import Heart, is_silent, silent_senders
from services.wire.memory import MemoryInlet, MemoryOutlet, memory_link
from services.wire.messages import Credit, FeedbackMessage
from services.wire.topology import FEEDBACK


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _link(clock: Clock) -> tuple[MemoryOutlet[FeedbackMessage], MemoryInlet[FeedbackMessage]]:
    return memory_link(FEEDBACK, 100, clock)


def _times_heard(every_s: float, times: list[float]) -> list[float]:
    """When the inlet heard something, if the heart is asked to beat at these times."""
    clock = Clock()
    outlet, inlet = _link(clock)
    heart = Heart([outlet], every_s)
    heard: list[float] = []
    for clock.now in times:
        heart.beat(clock.now)
        inlet.receive()
        heard += inlet.last_heard().values()
    return sorted(set(heard))


def test_the_first_beat_is_due_at_once_and_the_next_after_the_interval() -> None:
    assert _times_heard(1.0, [10.0, 10.5, 10.99, 11.0, 11.5, 12.2, 13.1, 13.3]) == [10.0, 11.0, 12.2, 13.3]


def test_a_beat_goes_out_on_every_outlet() -> None:
    links = [_link(Clock()) for _ in range(3)]
    Heart([outlet for outlet, _ in links], 1.0).beat(0.0)
    for _, inlet in links:
        assert inlet.receive() == []
        assert len(inlet.last_heard()) == 1


def test_a_sender_never_heard_is_not_dead() -> None:
    _, inlet = _link(Clock())
    assert silent_senders(inlet, now=1e9, death_s=5.0) == []


def test_a_sender_is_dead_once_its_silence_is_longer_than_allowed() -> None:
    clock = Clock()
    outlet, inlet = _link(clock)
    outlet.heartbeat()
    inlet.receive()
    assert silent_senders(inlet, now=5.0, death_s=5.0) == []
    assert silent_senders(inlet, now=5.1, death_s=5.0) == list(inlet.last_heard())


def test_any_frame_is_a_sign_of_life() -> None:
    clock = Clock()
    outlet, inlet = _link(clock)
    outlet.heartbeat()
    inlet.receive()
    clock.now = 4.0
    outlet.send(Credit("g", 1))
    inlet.receive()
    assert silent_senders(inlet, now=8.0, death_s=5.0) == []


def test_a_peer_that_began_anew_is_silent_only_when_its_new_beginning_is() -> None:
    clock = Clock()
    before, inlet = _link(clock)
    after = inlet.outlet()
    assert not is_silent(inlet, now=1e9, death_s=5.0)
    before.heartbeat()
    inlet.receive()
    clock.now = 10.0
    after.heartbeat()
    inlet.receive()
    assert not is_silent(inlet, now=15.0, death_s=5.0)
    assert is_silent(inlet, now=15.1, death_s=5.0)


def test_of_several_senders_only_the_silent_one_is_named() -> None:
    clock = Clock()
    alive, inlet = _link(clock)
    silent = inlet.outlet()
    silent.heartbeat()
    inlet.receive()
    (dead,) = inlet.last_heard()
    clock.now = 10.0
    alive.heartbeat()
    inlet.receive()
    assert silent_senders(inlet, now=10.0, death_s=5.0) == [dead]
