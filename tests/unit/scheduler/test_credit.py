"""Credit by itself: who is silent, by numbers of batches alone."""

from services.scheduler.core.credit import Credits


def silent(credits: Credits, last_number: int) -> list[str]:
    credits.refresh(last_number)
    return [gateway for gateway in ("g", "h", "unknown") if credits.is_silent(gateway)]


def test_a_reader_may_be_so_far_behind_and_no_further() -> None:
    credits = Credits(max_unread=3)
    credits.know("g", 10)
    assert silent(credits, 13) == [] and not credits.is_any_silent
    assert silent(credits, 14) == ["g"] and credits.is_any_silent
    credits.credit("g", 11)
    assert silent(credits, 14) == []


def test_credits_are_cumulative_and_an_overtaken_one_is_nothing() -> None:
    credits = Credits(max_unread=3)
    credits.know("g", 0)
    credits.credit("g", 9)
    credits.credit("g", 2)
    assert silent(credits, 12) == []


def test_a_gateway_begins_level_with_the_last_batch_and_is_known_once() -> None:
    credits = Credits(max_unread=3)
    credits.know("g", 100)
    credits.know("h", 0)
    credits.know("g", 0)
    assert silent(credits, 103) == ["h"]


def test_each_change_is_told_once() -> None:
    credits = Credits(max_unread=1)
    credits.know("g", 0)
    assert [credits.refresh(number) for number in (1, 2, 3)] == [False, True, False]
    credits.credit("g", 3)
    assert [credits.refresh(3), credits.refresh(3)] == [True, False]
