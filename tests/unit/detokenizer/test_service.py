"""The service over memory links: one end an open whatever the order, complete credit whatever the gateways do."""

from collections.abc import Callable, Mapping
from random import Random

import pytest

from services.detokenizer.lane import PendingExceeded
from services.detokenizer.service import RETRY_S, DetokenizerService, PeerSilent
from services.detokenizer.streams import Streams
from services.runtime import logs
from services.runtime.settings import LinkSettings
from services.wire.liveness import Heart
from services.wire.memory import memory_link
from services.wire.messages import Close, FinishReason, SequenceKey, SetDetokenizerLog, StopHit, TokenBatch
from services.wire.topology import FEEDBACK, TEXT, TOKENS
from tests.unit.detokenizer.scripted import KEY, Stage, opened

GATEWAYS = ("gateway-0", "gateway-1", "gateway-2")


class Life:
    """A scheduler's view of one sequence: it goes on until it ends by itself, is cancelled, or a StopHit is heard."""

    def __init__(self, key: SequenceKey, draw: Random) -> None:
        self.key = key
        self.stops = ["aa", "b", "ca"][: draw.randint(0, 3)]
        self.min_tokens = draw.choice([0, 0, 3])
        self.max_tokens = draw.randint(1, 12)
        self.hears_stops_after = draw.randint(0, 4)  # batches until a StopHit gets through
        self.tokens: list[int] = []

    def expected(self) -> tuple[str, str | None]:
        """By the text alone: tokens here are one letter each."""
        text = ""
        for number, token_id in enumerate(self.tokens, 1):
            text += "abc"[token_id - 81]
            ends = [stop for stop in self.stops if number > self.min_tokens and text.endswith(stop)]
            if ends:
                longest = max(ends, key=len)
                return text[: -len(longest)], longest
        return text, None


@pytest.mark.parametrize("seed", range(12))
def test_every_open_ends_once_under_random_interleavings(streams: Streams, seed: int) -> None:
    """Stops, late tokens, late closes, cancels and full outlets; three gateways, one of which often does not read."""
    draw = Random(seed)
    stage = Stage(streams, GATEWAYS, bound=draw.choice([2, 4, 4096]), max_pending=100_000)
    lives: dict[SequenceKey, Life] = {}
    done: list[Life] = []
    for turn in range(150):
        opens = []
        if turn < 120 and draw.random() < 0.6:
            life = Life(SequenceKey(draw.choice(GATEWAYS), f"r{turn % 7}", turn, draw.randint(0, 1)), draw)
            lives[life.key] = life
            opens = [opened(life.key, life.stops, min_tokens=life.min_tokens)]
        tokens = {}
        for life in lives.values():
            if draw.random() < 0.7 and len(life.tokens) < life.max_tokens:
                tokens[life.key] = draw.choices([81, 82, 83], k=draw.randint(1, life.max_tokens - len(life.tokens)))
                life.tokens += tokens[life.key]
        closes = _closes(lives, stage.stop_hits, draw, is_last=turn == 149)
        done += [lives.pop(close.sequence) for close in closes]
        stage.say(opens, tokens, closes)
        if draw.random() < 0.7:
            stage.service.turn()
        stage.listen([gateway for gateway in GATEWAYS if draw.random() < 0.5])
    _settle(stage)
    assert done and len(streams) == 0 and stage.service.is_idle
    assert stage.credits == dict.fromkeys(GATEWAYS, stage.number)
    for life in done:
        text, matched = life.expected()
        heard = stage.heard(life.key)
        assert (heard.text, heard.end.matched_stop) == (text, matched)
        assert heard.token_ids == life.tokens[: heard.end.num_output_tokens]
        assert (StopHit(life.key, len(heard.token_ids) - 1) in stage.stop_hits) is (matched is not None)


def _closes(lives: Mapping[SequenceKey, Life], hits: list[StopHit], draw: Random, is_last: bool) -> list[Close]:
    """The scheduler ends what has its length, what a client cancels, and, sooner or later, what was hit by a stop."""
    closes = []
    for life in lives.values():
        is_hit = any(hit.sequence == life.key for hit in hits)
        life.hears_stops_after -= is_hit
        is_full = len(life.tokens) == life.max_tokens
        if is_last or is_full or (is_hit and life.hears_stops_after < 0) or draw.random() < 0.02:
            reason = FinishReason.LENGTH if is_full else FinishReason.CANCELLED
            closes.append(Close(life.key, reason, num_output_tokens=len(life.tokens)))
    return closes


def _settle(stage: Stage) -> None:
    """Everybody reads until there is nothing more."""
    for _ in range(10_000):
        stage.service.turn()
        stage.listen()
        if stage.service.is_idle:
            return
    raise AssertionError("never idle")


class TestCredit:
    def test_every_gateway_is_credited_for_every_batch(self, streams: Streams) -> None:
        stage = Stage(streams, GATEWAYS)
        stage.step([opened()])
        assert stage.credits == dict.fromkeys(GATEWAYS, 1)
        stage.step(tokens={KEY: [81]})
        stage.step()
        assert stage.credits == dict.fromkeys(GATEWAYS, 3)
        assert stage.listeners["gateway-1"].numbers == []

    def test_a_full_outlet_withholds_credit_and_holds_up_nobody(self, streams: Streams) -> None:
        stuck, other = KEY, SequenceKey("gateway-1", "other", 1, 0)
        stage = Stage(streams, GATEWAYS, bound=3)
        stage.say([opened(stuck), opened(other)])
        for _ in range(20):
            stage.say(tokens={stuck: [81], other: [82]})
            stage.service.turn()
            stage.listen(["gateway-1"])
        # Three messages were taken, in TokenBatches 2 to 4; the one of 5 is the first that was not.
        assert stage.credits == {"gateway-0": 4, "gateway-1": 21, "gateway-2": 21}
        assert stage.heard(other).text == "b" * 20
        assert not stage.service.is_idle
        credited = []
        while stage.credits["gateway-0"] < 21:
            stage.listen()
            stage.service.turn()
            credited.append(stage.credits["gateway-0"])
        stage.listen()
        assert credited == sorted(credited) and len(set(credited)) > 3
        assert stage.heard(stuck).text == "a" * 20

    def test_batches_of_others_do_not_credit_what_is_pending(self, streams: Streams) -> None:
        other = SequenceKey("gateway-1", "other", 1, 0)
        stage = Stage(streams, GATEWAYS, bound=1)
        stage.step([opened(KEY), opened(other)])
        for _ in range(2):
            stage.say(tokens={KEY: [81]})
            stage.service.turn()
            stage.listen([])
        for _ in range(5):
            stage.say(tokens={other: [81]})
            stage.service.turn()
            stage.listen(["gateway-1"])
        assert stage.credits["gateway-0"] == 2
        _settle_open(stage)
        assert stage.credits["gateway-0"] == stage.number

    def test_more_pending_than_the_bound_is_loud(self, streams: Streams) -> None:
        stage = Stage(streams, bound=1, max_pending=4)
        stage.say([opened()])
        for _ in range(5):
            stage.say(tokens={KEY: [81]})
        stage.service.turn()
        stage.say(tokens={KEY: [81]})
        with pytest.raises(PendingExceeded, match="5 TextBatches are pending for gateway-0"):
            stage.service.turn()

    def test_stop_hits_survive_a_full_outlet(self, streams: Streams) -> None:
        """More of them than the feedback link holds, while the scheduler is busy."""
        stage = Stage(streams, bound=2)
        keys = [SequenceKey("gateway-0", f"r{order}", 1, 0) for order in range(9)]
        stage.say([opened(key, ["a"]) for key in keys])
        stage.say(tokens={key: [81] for key in keys})
        stage.service.turn()
        _settle_open(stage)
        assert stage.stop_hits == [StopHit(key, 0) for key in keys]
        assert stage.credits == {"gateway-0": 2}

    def test_numbers_must_rise(self, streams: Streams) -> None:
        stage = Stage(streams)
        stage.step()
        stage.number = 0
        with pytest.raises(AssertionError, match="TokenBatch 1 after 1"):
            stage.step()


def _settle_open(stage: Stage) -> None:
    for _ in range(20):
        stage.listen()
        stage.service.turn()


class Clock:
    """A clock and a waiter: waiting is what makes time pass."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, timeout_s: float) -> None:
        self.waits.append(timeout_s)
        self.now += timeout_s


class TestLoop:
    """`run` with time as an argument."""

    def start(self, streams: Streams, high_water_mark: int = 64) -> None:
        self.clock = Clock()
        self.to_tokens, tokens = memory_link(TOKENS, 64, self.clock)
        feedback, self.feedback = memory_link(FEEDBACK, 64, self.clock)
        text, self.text = memory_link(TEXT, high_water_mark, self.clock)
        self.heart = Heart([text, feedback], 1.0)
        self.service = DetokenizerService(streams, tokens, {"gateway-0": text}, feedback, 256)

    def run(self, num_waits: int) -> None:
        self.service.run(self.clock, self.heart, LinkSettings(), lambda: len(self.clock.waits) >= num_waits, self.clock)

    def test_it_shows_life_at_once_and_every_second(self, streams: Streams) -> None:
        self.start(streams)
        self.run(0)
        self.text.receive()
        assert list(self.text.last_heard().values()) == [100.0]
        self.run(7)
        assert self.text.receive() == []
        assert set(self.text.last_heard().values()) == {self.clock.now}
        assert list(self.feedback.last_heard()) == [] and self.feedback.receive() == []
        assert set(self.feedback.last_heard().values()) == {self.clock.now}
        assert self.clock.waits == [1.0] * 7

    def test_a_scheduler_never_heard_is_waited_for(self, streams: Streams) -> None:
        self.start(streams)
        self.run(30)
        assert self.service.is_idle

    def test_a_scheduler_that_falls_silent_is_a_death(self, streams: Streams) -> None:
        self.start(streams)
        self.to_tokens.heartbeat()
        with pytest.raises(PeerSilent, match=r"the scheduler has been silent for 5\.0 s"):
            self.run(100)
        assert 105 < self.clock.now <= 107

    def test_asked_to_stop_it_takes_in_what_has_arrived_and_goes(self, streams: Streams) -> None:
        self.start(streams)
        closed = SequenceKey("gateway-0", "closed", 1, 0)
        closes = (Close(closed, FinishReason.CANCELLED),)
        self.to_tokens.send(TokenBatch(1, opens=(opened(), opened(closed)), closes=closes))
        self.run(0)
        (batch,) = self.text.receive()
        assert batch.ends[0].reason == FinishReason.CANCELLED
        assert not self.service.is_idle and self.clock.waits == []

    def test_it_tries_again_soon_while_an_outlet_is_full(self, streams: Streams) -> None:
        self.start(streams, high_water_mark=1)
        closes = (Close(KEY, FinishReason.CANCELLED),)
        self.to_tokens.send(TokenBatch(1, opens=(opened(),), closes=closes))
        self.to_tokens.send(TokenBatch(2, opens=(opened(),), closes=closes))
        waits: list[float] = []

        def wait(timeout_s: float) -> None:
            waits.append(timeout_s)
            if len(waits) == 3:
                self.text.receive()

        self.service.run(_Waiter(wait), self.heart, LinkSettings(), lambda: len(waits) == 4, self.clock)
        assert waits == [RETRY_S] * 3 + [1.0]
        assert [batch.number for batch in self.text.receive()] == [2]


class _Waiter:
    def __init__(self, wait: Callable[[float], None]) -> None:
        self._wait = wait

    def wait(self, timeout_s: float) -> None:
        self._wait(timeout_s)


def test_it_logs_as_it_is_told_to(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[str] = []
    monkeypatch.setattr(logs, "set_level", levels.append)
    tokens, token_inlet = memory_link(TOKENS, 10)
    feedback, _ = memory_link(FEEDBACK, 10)
    service = DetokenizerService(streams, token_inlet, {}, feedback, 10)
    tokens.send(SetDetokenizerLog("debug"))
    service.turn()
    assert levels == ["debug"]
