"""Answers read for tool calls: every spelling, every cut of the text, and nothing lost of what is no call."""

import json
from collections.abc import Iterable, Sequence
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tool_calls import AnswerReader, Said, mint_id
from gateway.tools import Tools

WEATHER: dict[str, object] = {
    "name": "weather",
    "arguments": {"city": 'K\u00f6ln "am" {Rhein}', "days": [1, 2, {"x": "]"}]},
}
TIME: dict[str, object] = {"name": "time", "arguments": {}}
Call = tuple[str, str]  # name, arguments


def offered(*names: str, max_calls: int = 8) -> Tools:
    return Tools(tuple({"type": "function", "function": {"name": name}} for name in names), max_calls)


def pieces_of(pieces: Iterable[str], tools: Tools | None = None) -> list[Said]:
    ids = (f"id{number}" for number in count())
    reader = AnswerReader(tools or offered("weather", "time"), lambda: next(ids))
    said = [*map(reader.feed, pieces), reader.finish()]
    assert reader.num_calls == len({piece.index for each in said for piece in each.calls})
    return said


def read(pieces: Iterable[str], tools: Tools | None = None) -> tuple[str, list[Call]]:
    """The content, and the calls put together as a client does it."""
    said = pieces_of(pieces, tools)
    calls: list[Call] = []
    for piece in (piece for each in said for piece in each.calls):
        if piece.index == len(calls):
            assert piece.id == f"id{piece.index}" and piece.name
            calls.append((piece.name, piece.arguments))
        else:
            assert piece.index == len(calls) - 1 and not piece.id and not piece.name
            name, arguments = calls[-1]
            calls[-1] = (name, arguments + piece.arguments)
    return "".join(each.content for each in said), calls


def tagged(*calls: object) -> str:
    return "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>\n" for call in calls)


def call_of(call: dict[str, object]) -> Call:
    return str(call["name"]), json.dumps(call["arguments"])


BOTH = [call_of(WEATHER), call_of(TIME)]
ARGUMENTS = json.dumps(WEATHER["arguments"])
# The arguments as an indented call has them, a level deeper than by themselves.
INDENTED = json.dumps(WEATHER["arguments"], indent=2).replace("\n", "\n  ")
# Text, and the content and the calls in it.
READINGS: dict[str, tuple[str, str, Sequence[Call]]] = {
    "no call": ("Hello < there > {x}", "Hello < there > {x}", []),
    "blanks alone": (" \n ", " \n ", []),
    "blanks first": ("\n\n Hello", "\n\n Hello", []),
    "one": (tagged(WEATHER), "", BOTH[:1]),
    "two": (tagged(WEATHER, TIME), "", BOTH),
    "words before": ("Let me see. " + tagged(TIME), "Let me see. ", BOTH[1:]),
    "words between and behind": (f"a {tagged(TIME)}b {tagged(TIME)} c", "a \nb \n c", [BOTH[1]] * 2),
    "blanks before": ("\n " + tagged(TIME), "", BOTH[1:]),
    "array in tags": (f"<tool_call>[{json.dumps(WEATHER)}, {json.dumps(TIME)}]</tool_call>", "", BOTH),
    "no end marker": (f"<tool_call>{json.dumps(WEATHER)}", "", BOTH[:1]),
    "no end marker between": (f"<tool_call>{json.dumps(WEATHER)}\n<tool_call>{json.dumps(TIME)}", "", BOTH),
    "half an end marker": (f"<tool_call>{json.dumps(TIME)}\n</tool_c", "", BOTH[1:]),
    "plain": (json.dumps(WEATHER), "", BOTH[:1]),
    "plain with blanks around": (f" \n{json.dumps(WEATHER, indent=2)} ", "", [("weather", INDENTED)]),
    "plain array": (f" [{json.dumps(WEATHER)} ,\n{json.dumps(TIME)} ] ", "", BOTH),
    "plain, one behind the other": (f"{json.dumps(WEATHER)}\n{json.dumps(TIME)}", "", BOTH),
    "plain and words behind": (json.dumps(TIME) + " ok", " ok", BOTH[1:]),
    "parameters": (f'{{"name": "weather", "parameters": {ARGUMENTS}}}', "", BOTH[:1]),
    "arguments first": (f'{{"arguments": {ARGUMENTS}, "name": "weather"}}', "", BOTH[:1]),
    "arguments in a string": (json.dumps({"name": "weather", "arguments": ARGUMENTS}), "", BOTH[:1]),
    "other keys": ('{"id": -1.5e3, "type": [{"]": "function"}], "name": "time", "arguments": {}}', "", BOTH[1:]),
    "foreign keys": ('{"x": 1, "name": "time", "arguments": {}}', '{"x": 1, "name": "time", "arguments": {}}', []),
    "name in escapes": ('{"name": "t\\u0069me", "arguments": {}}', "", BOTH[1:]),
    "bare in tags": ('<tool_call>{"name": "time"}</tool_call>', "", BOTH[1:]),
    "bare and plain is content": ('{"name": "time"}', '{"name": "time"}', []),
    "not offered": ('{"name": "rm", "arguments": {}}', '{"name": "rm", "arguments": {}}', []),
    "not offered in tags": (tagged({"name": "rm", "arguments": {}}), tagged({"name": "rm", "arguments": {}}), []),
    "JSON that is no call": ('{"a": 1} x', '{"a": 1} x', []),
    "an array that is no call": ("[1, 2]", "[1, 2]", []),
    "an empty array": ("[]", "[]", []),
    "not first": ('See: {"name": "time", "arguments": {}}', 'See: {"name": "time", "arguments": {}}', []),
    "words in tags": ("use <tool_call>x</tool_call> so", "use <tool_call>x</tool_call> so", []),
    "words in tags, then a call": (f"<tool_call>no {tagged(TIME)}", "<tool_call>no ", BOTH[1:]),
    "tag in a tag": (f"<tool_call><tool_call>{json.dumps(TIME)}</tool_call>", "<tool_call>", BOTH[1:]),
    "half a marker": ("a <tool_cal", "a <tool_cal", []),
    "marker with a hitch": ("a <tool_<tool_call>" + json.dumps(TIME), "a <tool_", BOTH[1:]),
    "cut off in the arguments": ('<tool_call>{"name": "time", "arguments": {"a": [1', "", [("time", '{"a": [1')]),
    "cut off in the name": ('<tool_call>{"name": "tim', '<tool_call>{"name": "tim', []),
    "cut off behind a call": (f'[{json.dumps(TIME)}, {{"na', "", BOTH[1:]),
    "broken in the arguments": (
        '<tool_call>{"name": "time", "arguments": {]} x</tool_call>!',
        "]} x!",
        [("time", "{")],
    ),
    "broken behind the arguments": (
        '<tool_call>{"name": "time", "arguments": {} ? }</tool_call>!',
        "? }!",
        [("time", "{}")],
    ),
    "twice a name": (
        '{"name": "time", "name": "time", "arguments": {}}',
        '{"name": "time", "name": "time", "arguments": {}}',
        [],
    ),
    "arguments of another kind": ('{"name": "time", "arguments": [1]}', '{"name": "time", "arguments": [1]}', []),
    "a bad escape": ('{"name": "\\q", "arguments": {}}', '{"name": "\\q", "arguments": {}}', []),
}


def expected(name: str) -> tuple[str, list[Call]]:
    _, content, calls = READINGS[name]
    return content, list(calls)


@pytest.mark.parametrize("name", READINGS)
def test_a_text_at_once(name: str) -> None:
    assert read([READINGS[name][0]]) == expected(name)


@pytest.mark.parametrize("name", READINGS)
def test_a_text_character_by_character(name: str) -> None:
    assert read(READINGS[name][0]) == expected(name)


@given(name=st.sampled_from(sorted(READINGS)), cuts=st.lists(st.integers(0, 200)))
def test_the_cut_changes_nothing(name: str, cuts: list[int]) -> None:
    text = READINGS[name][0]
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert read(pieces) == expected(name)


PARTS = [
    "<tool_call>",
    "</tool_call>",
    json.dumps(TIME),
    json.dumps(WEATHER),
    "[",
    "]",
    ",",
    "{",
    "}",
    " ",
    "\n",
    '"',
    "x",
]


@given(parts=st.lists(st.sampled_from(PARTS), max_size=12), cuts=st.lists(st.integers(0, 999), max_size=5))
def test_any_text_reads_alike_however_it_is_cut(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    assert read(pieces) == read([text])


@given(st.text(alphabet='<tool_call>/{["name: x\n', max_size=60))
def test_a_text_without_calls_is_content_to_the_last_character(text: str) -> None:
    assert read(text) == (text, [])


def test_a_marker_shows_in_no_piece_of_a_stream() -> None:
    said = pieces_of("Hi " + tagged(WEATHER))
    assert "".join(each.content for each in said[:4]) == "Hi "
    assert all(not each.content for each in said[4:])


def test_arguments_are_handed_on_as_they_come() -> None:
    text = tagged(WEATHER)
    said = pieces_of(text)
    start = text.index('{"city')
    assert [len(each.calls) for each in said[:start]] == [0] * start
    first, second = said[start].calls
    assert (first.name, first.arguments, second.arguments) == ("weather", "", "{")
    told = [each.calls[0].arguments for each in said[start + 1 :] if each.calls]
    assert all(len(piece) == 1 for piece in told) and len(told) == len(ARGUMENTS) - 1


def test_what_is_no_call_is_let_go_at_once() -> None:
    text = '{"answer": 42}'
    border = text.index(":")
    assert [each.content for each in pieces_of(text)] == [*[""] * (border - 1), text[:border], *text[border:], ""]


def test_calls_beyond_the_bound_are_left_away() -> None:
    assert read([tagged(WEATHER, TIME, TIME)], offered("weather", "time", max_calls=1)) == ("", BOTH[:1])
    many = f"[{', '.join([json.dumps(TIME)] * 5)}]"
    assert read(many, offered("time", max_calls=3)) == ("", [BOTH[1]] * 3)


def test_ids_differ() -> None:
    ids = {mint_id() for _ in range(100)}
    assert len(ids) == 100 and all(each.startswith("call_") and len(each) == 29 for each in ids)


@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00", "\\ude00\\ud83d"])
def test_half_a_character_in_arguments_spelled_as_a_string_can_be_told(half: str) -> None:
    _, ((name, arguments),) = read([f'{{"name": "time", "arguments": "{{}} \\ud83d\\ude00 {half}"}}'])
    assert name == "time"
    assert arguments == "{} \U0001f600 " + "\ufffd" * half.count("u")
    arguments.encode()
