"""A mailbox merges what its reader has not taken, keeps the order, and knows its bound."""

import asyncio

import pytest

from gateway.errors import CallError
from gateway.mailbox import Mailbox, Piece
from services.wire import columns
from services.wire.messages import Candidate, FinishReason, Identity, TextDelta, TokenLogprobs
from tandem.v1 import errors_pb2 as reasons
from tests.unit.gateway.rig import text_end

pytestmark = pytest.mark.asyncio(loop_scope="session")

IDENTITY = Identity("gateway-0", "r", 1)


def delta(text: str, *tokens: int, index: int = 0) -> TextDelta:
    logprobs = tuple(TokenLogprobs((Candidate(token, -1.0, 1, b"t"),)) for token in tokens)
    return TextDelta("r", 1, index, text, columns.pack(tokens), logprobs)


def content(piece: Piece) -> tuple[int, str, list[int], list[int], bool]:
    tokens = columns.unpack(piece.token_column).tolist()
    chosen = [token.candidates[0].token_id for token in piece.logprobs]
    return piece.index, piece.text, tokens, chosen, piece.end is not None


def end(mailbox: Mailbox, index: int = 0) -> None:
    mailbox.end(text_end(IDENTITY, FinishReason.STOP, index=index))


async def test_what_waits_is_merged_and_what_does_not_is_not() -> None:
    mailbox = Mailbox(1, 100)
    mailbox.put(delta("a", 1))
    mailbox.put(delta("b", 2, 3))
    assert [content(piece) for piece in await mailbox.take()] == [(0, "ab", [1, 2, 3], [1, 2, 3], False)]
    mailbox.put(delta("c", 4))
    assert [content(piece) for piece in await mailbox.take()] == [(0, "c", [4], [4], False)]
    mailbox.put(delta("", 5))
    end(mailbox)
    assert [content(piece) for piece in await mailbox.take()] == [(0, "", [5], [5], True)]


async def test_a_reader_that_waits_is_woken() -> None:
    mailbox = Mailbox(1, 100)
    reader = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    assert not reader.done()
    mailbox.put(delta("a", 1))
    assert [content(piece) for piece in await reader] == [(0, "a", [1], [1], False)]


async def test_sequences_do_not_mix_and_ended_ones_come_last() -> None:
    mailbox = Mailbox(3, 100)
    mailbox.put(delta("x", 1, index=2))
    end(mailbox, 2)
    mailbox.put(delta("y", 2, index=1))
    mailbox.put(delta("z", 3, index=0))
    mailbox.put(delta("y", 4, index=1))
    assert [content(piece) for piece in await mailbox.take()] == [
        (0, "z", [3], [3], False),
        (1, "yy", [2, 4], [2, 4], False),
        (2, "x", [1], [1], True),
    ]


async def test_the_first_piece_of_each_sequence_says_so() -> None:
    mailbox = Mailbox(2, 100)
    mailbox.put(delta("a", 1, index=0))
    (first,) = await mailbox.take()
    mailbox.put(delta("a", 1, index=0))
    mailbox.put(delta("b", 1, index=1))
    again, other = await mailbox.take()
    assert (first.is_first, again.is_first, other.is_first) == (True, False, True)


async def test_the_bound_counts_what_lies_here_and_nothing_else() -> None:
    mailbox = Mailbox(1, 3)
    assert mailbox.put(delta("a", 1, 2, 3))
    await mailbox.take()
    assert mailbox.put(delta("b", 4, 5))
    assert mailbox.put(delta("c", 6))
    assert not mailbox.put(delta("d", 7))


async def test_a_call_that_is_answered_once_waits_for_everything_without_a_bound() -> None:
    mailbox = Mailbox(2, None)
    reader = asyncio.create_task(mailbox.take())
    for token in range(50):
        assert mailbox.put(delta("a", token, index=token % 2))
    end(mailbox, 0)
    await asyncio.sleep(0)
    assert not reader.done()
    end(mailbox, 1)
    pieces = await reader
    assert [(piece.index, piece.text, len(piece.logprobs)) for piece in pieces] == [
        (0, "a" * 25, 25),
        (1, "a" * 25, 25),
    ]


async def test_an_error_comes_after_what_was_there_before_it() -> None:
    mailbox = Mailbox(1, 100)
    mailbox.put(delta("a", 1))
    mailbox.fail(CallError(reasons.ERROR_REASON_ENGINE_DEAD, "gone"))
    mailbox.put(delta("never", 2))
    assert [piece.text for piece in await mailbox.take()] == ["a"]
    with pytest.raises(CallError, match="gone"):
        await mailbox.take()


async def test_a_call_that_is_answered_once_fails_whole() -> None:
    mailbox = Mailbox(1, None)
    mailbox.put(delta("a", 1))
    mailbox.fail(CallError(reasons.ERROR_REASON_ENGINE_DEAD, "gone"))
    with pytest.raises(CallError, match="gone"):
        await mailbox.take()


async def test_nothing_follows_the_end() -> None:
    mailbox = Mailbox(1, 100)
    end(mailbox)
    mailbox.put(delta("never", 1))
    mailbox.fail(CallError(reasons.ERROR_REASON_ENGINE_DEAD, "too late"))
    (piece,) = await mailbox.take()
    assert (piece.text, piece.end is not None, mailbox.error) == ("", True, None)


async def test_the_first_error_counts() -> None:
    mailbox = Mailbox(1, 100)
    mailbox.fail(CallError(reasons.ERROR_REASON_DRAINING, "first"))
    mailbox.fail(CallError(reasons.ERROR_REASON_ENGINE_DEAD, "second"))
    with pytest.raises(CallError, match="first"):
        await mailbox.take()


async def test_what_is_broken_off_before_its_ends_are_taken_ends_with_the_error() -> None:
    error = CallError(reasons.ERROR_REASON_CANCELLED, "")
    for max_tokens in (100, None):
        mailbox = Mailbox(2, max_tokens)
        mailbox.put(delta("a", 1))
        end(mailbox, 0)
        end(mailbox, 1)
        mailbox.break_off(error)
        for _ in range(2):
            with pytest.raises(CallError, match="CANCELLED"):
                await mailbox.take()


async def test_what_has_been_taken_to_its_end_is_not_broken_off() -> None:
    mailbox = Mailbox(1, 100)
    end(mailbox)
    assert len(await mailbox.take()) == 1
    mailbox.break_off(CallError(reasons.ERROR_REASON_CANCELLED, ""))
    assert mailbox.error is None
