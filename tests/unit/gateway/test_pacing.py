"""Pacing: nothing is held while few streams run; under load messages gather tokens, within both sides' bounds."""

import asyncio
from collections import Counter

import pytest

from gateway.mailbox import Mailbox
from gateway.pacing import Pace, Pacer
from services.wire import columns
from services.wire.messages import FinishReason, Identity, TextDelta
from tests.unit.gateway.rig import text_end

pytestmark = pytest.mark.asyncio(loop_scope="session")

MAX_DELAY_S = 0.024
STEP_S = 0.02
MANY = 256


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A pacer and the mailboxes of some streams, a batch with a token for each at a time."""

    def __init__(self, num_streams: int, step_s: float = STEP_S, max_delay_s: float = MAX_DELAY_S) -> None:
        self.clock = Clock()
        self.pacer = Pacer(max_delay_s, 4000, self.clock)
        self.step_s = step_s
        self.num_streams = num_streams
        self.token = 0
        for _ in range(200):
            self.pass_step()

    def pass_step(self) -> None:
        self.clock.now += self.step_s
        self.pacer.batch(self.clock.now, self.num_streams)
        self.token += 1

    def mailbox(self, order: int = 0, max_tokens: int | None = None, max_delay_s: float | None = None) -> Mailbox:
        mailbox = Mailbox(1, 10_000)
        mailbox.pace = Pace(self.pacer, order, max_tokens, max_delay_s)
        return mailbox

    def put(self, mailbox: Mailbox, num_tokens: int = 1) -> None:
        mailbox.put(TextDelta("r", 1, 0, "x" * num_tokens, columns.pack([self.token] * num_tokens)))


def taken(mailbox: Mailbox) -> list[list[int]]:
    """What may go now: the tokens of each message."""
    taking = mailbox.take()
    try:
        taking.send(None)
    except StopIteration as done:
        return [columns.unpack(piece.token_column).tolist() for piece in done.value]
    taking.close()
    return []


async def sizes(bench: Bench, mailbox: Mailbox, num_steps: int) -> list[int]:
    """How many tokens each message has, over so many steps, the first token left out."""
    bench.pass_step()
    bench.put(mailbox)
    assert len(taken(mailbox)) == 1, "the first token is never held"
    messages = []
    for _ in range(num_steps):
        bench.pass_step()
        bench.put(mailbox)
        messages += taken(mailbox)
    return [len(message) for message in messages]


async def test_few_streams_have_one_message_a_token() -> None:
    bench = Bench(64)
    assert await sizes(bench, bench.mailbox(), 20) == [1] * 20


@pytest.mark.parametrize(
    ("step_s", "max_delay_s", "gathered"), [(0.02, 0.024, 2), (0.002, 0.024, 12), (0.025, 0.024, 1), (0.002, 0.0, 1)]
)
async def test_many_streams_gather_what_fits_in_the_delay(step_s: float, max_delay_s: float, gathered: int) -> None:
    bench = Bench(MANY, step_s, max_delay_s)
    found = await sizes(bench, bench.mailbox(), 120)
    assert set(found[1:]) <= {gathered, gathered + 1} and found[2] in (gathered, gathered + 1)


async def test_streams_in_the_middle_gather_what_the_rate_asks_for() -> None:
    bench = Bench(16, 0.001)
    assert set((await sizes(bench, bench.mailbox(), 40))[1:]) == {4}


async def test_streams_take_turns() -> None:
    bench = Bench(MANY)
    mailboxes = [bench.mailbox(order) for order in range(8)]
    bench.pass_step()
    for mailbox in mailboxes:
        bench.put(mailbox)
        taken(mailbox)
    sent = Counter[int]()
    for step in range(2):
        bench.pass_step()
        for mailbox in mailboxes:
            bench.put(mailbox)
            sent[step] += len(taken(mailbox))
    assert sent == {0: 4, 1: 4}


async def test_what_is_held_goes_when_its_time_is_over_though_nothing_follows() -> None:
    bench = Bench(MANY)
    # The one of two neighbours whose turn it is not.
    for order in (0, 1):
        mailbox = bench.mailbox(order)
        bench.put(mailbox)
        taken(mailbox)
        bench.put(mailbox)
        bench.put(mailbox)
        if not taken(mailbox):
            break
    else:
        pytest.fail("nothing was held")
    taking = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    bench.clock.now += MAX_DELAY_S
    (piece,) = await asyncio.wait_for(taking, 5)
    assert piece.num_tokens == 2


async def test_a_client_s_smaller_delay_is_kept_beside_greater_ones() -> None:
    bench = Bench(MANY, 0.002)
    patient, hasty = bench.mailbox(1), bench.mailbox(2, max_delay_s=0.004)
    for mailbox in (patient, hasty):
        bench.put(mailbox)
        taken(mailbox)
    while not patient.pace or patient.pace.since is None:
        bench.pass_step()
        bench.put(patient)
        taken(patient)
    hold_of_hasty = bench.pacer.within(0.004)
    while (bench.pacer.number + 2) % hold_of_hasty == 0:
        bench.pass_step()
    bench.put(hasty)
    assert taken(hasty) == []
    taking = asyncio.create_task(hasty.take())
    await asyncio.sleep(0)
    bench.clock.now += 0.004
    (piece,) = await asyncio.wait_for(taking, 5)
    assert piece.num_tokens == 1


async def test_nothing_is_held_for_longer_when_the_rhythm_changes() -> None:
    bench = Bench(64, 0.002)
    mailbox = bench.mailbox(order=5)
    bench.put(mailbox)
    taken(mailbox)
    for width in range(40, 400):
        bench.num_streams = width
        bench.pass_step()
        bench.put(mailbox)
        assert mailbox.pace is not None
        held = 0 if mailbox.pace.since is None else bench.pacer.number - mailbox.pace.since + 1
        assert held <= bench.pacer.hold
        taken(mailbox)


async def test_a_client_that_wants_no_delay_has_none() -> None:
    bench = Bench(MANY, 0.002)
    assert await sizes(bench, bench.mailbox(max_delay_s=0.0), 20) == [1] * 20


async def test_a_client_s_own_delay_counts_where_it_is_the_smaller_one() -> None:
    bench = Bench(MANY, 0.002)
    assert max(await sizes(bench, bench.mailbox(max_delay_s=0.0041), 40)) == 3
    assert max(await sizes(bench, bench.mailbox(max_delay_s=60.0), 40)) <= 13


async def test_a_message_that_is_full_goes_at_once() -> None:
    bench = Bench(MANY, 0.002)
    assert max(await sizes(bench, bench.mailbox(max_tokens=3), 40)) == 3


async def test_a_client_that_was_away_gets_messages_no_larger_than_it_asked_for() -> None:
    bench = Bench(1)
    mailbox = bench.mailbox(max_tokens=3)
    for _ in range(4):
        bench.pass_step()
        bench.put(mailbox, 2)
    bench.put(mailbox, 5)
    mailbox.end(text_end(Identity("g", "r", 1), FinishReason.STOP))
    messages = taken(mailbox)
    assert [len(message) for message in messages] == [2, 2, 2, 2, 5], "no delta of the engine's is divided"
    tokens = [token for message in messages for token in message]
    assert tokens == sorted(tokens)


async def test_the_end_is_never_held() -> None:
    bench = Bench(MANY)
    mailbox = bench.mailbox()
    bench.put(mailbox)
    taken(mailbox)
    bench.put(mailbox)
    mailbox.end(text_end(Identity("g", "r", 1), FinishReason.STOP))
    assert [len(message) for message in taken(mailbox)] == [1]


async def test_a_pause_says_nothing_about_the_rhythm() -> None:
    bench = Bench(MANY)
    before = bench.pacer.hold
    bench.clock.now += 60.0
    bench.pass_step()
    assert (before, bench.pacer.hold) == (2, 2)
