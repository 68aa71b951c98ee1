"""The stop matcher against a matcher that looks at every prefix of the text, one character at a time."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.detokenizer.stops import StopMatcher

WORDS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)
PIECES = st.lists(st.tuples(st.text("abc", max_size=6), st.booleans()), max_size=8)


def reference(pieces: list[tuple[str, bool]], stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that ends it, and that stop string; the whole text and None without."""
    text = ""
    for piece, may_stop in pieces:
        for character in piece:
            text += character
            ending = [stop for stop in stops if may_stop and text.endswith(stop)]
            if ending:
                longest = max(ending, key=len)
                return text[: -len(longest)], longest
    return text, None


def held_at_least(text: str, stops: list[str]) -> int:
    """The length of the longest tail that may still become a stop string."""
    return max(n for n in range(len(text) + 1) if n == 0 or any(len(s) > n and s.startswith(text[-n:]) for s in stops))


def run(matcher: StopMatcher, pieces: list[tuple[str, bool]]) -> str:
    released = ""
    for piece, may_stop in pieces:
        released += matcher.feed(piece, may_stop)
        if matcher.matched is not None:
            return released
    return released + matcher.flush()


@given(PIECES, WORDS, st.booleans())
def test_the_end_is_where_the_text_says(pieces: list[tuple[str, bool]], stops: list[str], include_stop: bool) -> None:
    before, stop = reference(pieces, stops)
    matcher = StopMatcher(stops, include_stop)
    expected = before + (stop or "") if include_stop else before
    assert (run(matcher, pieces), matcher.matched) == (expected, stop)


@given(PIECES, WORDS)
def test_exactly_the_possible_beginning_of_a_stop_is_held(pieces: list[tuple[str, bool]], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    text = released = ""
    for piece, may_stop in pieces:
        text += piece
        released += matcher.feed(piece, may_stop)
        if matcher.matched is not None:
            return
        assert released == text[: len(text) - held_at_least(text, stops)]
    assert released + matcher.flush() == text
    assert matcher.flush() == ""


@given(
    st.text("ab\u672c\U0001f600", max_size=30),
    st.lists(st.text("ab\u672c\U0001f600", min_size=1, max_size=4), min_size=1),
)
def test_cutting_and_order_change_nothing(text: str, stops: list[str]) -> None:
    whole = StopMatcher(stops)
    expected = run(whole, [(text, True)])
    split = StopMatcher(list(reversed(stops)))
    assert run(split, [(character, True) for character in text]) == expected
    assert split.matched == whole.matched


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "matched"),
    [
        (["aab"], ["aa", "ab"], "a", "aab"),  # must not restart from zero
        (["is", "ar"], [" Paris"], " P", "ar"),  # the first to complete
        (["ris", "aris"], [" Paris"], " P", "aris"),  # together: the longest
        (["b", "abc"], ["a", "bc"], "a", "b"),  # a shorter one inside a longer one completes first
        (["abcd", "bc"], ["abc", "d"], "a", "bc"),
        (["ab", "ab"], ["ab"], "", "ab"),
        (["\0"], ["a", "\0", "b"], "a", "\0"),
    ],
)
def test_which_stop_wins(stops: list[str], pieces: list[str], text: str, matched: str) -> None:
    matcher = StopMatcher(stops)
    assert run(matcher, [(piece, True) for piece in pieces]) == text
    assert matcher.matched == matched


def test_a_long_stop_string_delays_nothing_but_its_own_beginning() -> None:
    matcher = StopMatcher(["x" * 200])
    for piece in ("one", " two", " three"):
        assert matcher.feed(piece) == piece
    assert matcher.feed("x" * 199) == ""
    assert matcher.feed("y") == "x" * 199 + "y"


def test_a_stop_that_does_not_count_yet_is_ordinary_text() -> None:
    matcher = StopMatcher(["ab", "bab"])
    assert matcher.feed("ab", may_stop=False) == "a"  # the b may begin "bab"
    assert matcher.feed("a", may_stop=False) == ""
    assert matcher.feed("b") == ""
    assert matcher.matched == "bab"


def test_many_long_stop_strings_in_a_long_text() -> None:
    """All at the gateway's bounds, and a text that approaches them again and again."""
    draw = Random(5)
    stops = ["".join(draw.choices("ab", k=1023)) + "!" for _ in range(64)]
    text = "".join(stop[: draw.randint(1, 1000)] + "-" for stop in stops)
    matcher = StopMatcher(stops)
    pieces = [(text[start : start + 4], True) for start in range(0, len(text), 4)]
    assert run(matcher, [*pieces, (stops[7], True), ("more", True)]) == text
    assert matcher.matched == stops[7]


def test_text_after_the_end_is_a_bug() -> None:
    matcher = StopMatcher(["a"])
    matcher.feed("a")
    with pytest.raises(AssertionError, match="after its end"):
        matcher.feed("b")
