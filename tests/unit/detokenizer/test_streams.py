"""One sequence through the service: every stop case, every way to end, logprobs, and what is a bug."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.detokenizer.streams import Streams
from services.tokenizer import Tokenizer
from services.wire import columns
from services.wire.messages import (
    Close,
    Deltas,
    FailureReason,
    FinishReason,
    Logprobs,
    SequenceKey,
    Start,
    StopHit,
    TextBatch,
    Timings,
    TokenBatch,
)
from tests.unit.detokenizer.scripted import KEY, Heard, Stage, opened, play

DATA = Path(__file__).parents[2] / "data" / "cases_text.jsonl"
CASES = {case["id"]: case["data"] for case in map(json.loads, DATA.read_text().splitlines()) if case["kind"] == "stop"}
FINISHES = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def stop_cases() -> list[Any]:
    """Flat: each with its ids; the case of stops that are special tokens is the scheduler's, which ends them by id."""
    flat = []
    for name, data in CASES.items():
        for order, case in enumerate(data.get("cases", [data])):
            if "matched" in case:
                flat.append(pytest.param({"ids": data.get("ids"), **case}, id=f"{name}-{order}"))
    return flat


def merged(heard: Heard) -> list[str]:
    """The text of each token; what the end let go comes with the last token."""
    texts = [text for text, token_ids in heard.deltas if token_ids]
    texts[-1] += "".join(text for text, token_ids in heard.deltas if not token_ids)
    return texts


@pytest.mark.parametrize("case", stop_cases())
@pytest.mark.parametrize("is_reversed", [False, True])
def test_stop_cases(streams: Streams, case: dict[str, Any], is_reversed: bool) -> None:
    stops = case["stop"][::-1] if is_reversed else case["stop"]
    stage = Stage(streams)
    heard = play(stage, opened(stops=stops), case["ids"])
    assert heard.text == case["text"]
    assert merged(heard) == case["deltas"]
    assert heard.token_ids == case["ids"][: case["tokens_used"]]
    assert heard.end.num_output_tokens == case["tokens_used"]
    assert heard.end.num_prompt_tokens == 5
    assert heard.end.reason == FINISHES[case["finish"]]
    assert heard.end.matched_stop == case["matched"]
    hits = [StopHit(KEY, case["tokens_used"] - 1)] if case["matched"] else []
    assert stage.stop_hits == hits and len(streams) == 0


def test_a_stop_that_is_a_special_token_shows_no_text_and_keeps_its_id(streams: Streams) -> None:
    """The scheduler ends it by id, and says which."""
    for case in CASES["C20"]["cases"]:
        key = SequenceKey("gateway-0", str(case["ids"]), 1, 0)
        stage = Stage(streams)
        used = case["ids"][: case["tokens_used"]]
        stage.step([opened(key, case["stop"])])
        stop = Close(key, FinishReason.STOP, num_output_tokens=len(used), matched_token=used[-1])
        stage.step(tokens={key: used}, closes=[stop])
        heard = stage.heard(key)
        assert (heard.text, heard.token_ids, heard.end.matched_token) == (case["text"], used, used[-1])


def test_a_special_token_that_is_shown_completes_its_stop_string(streams: Streams) -> None:
    heard = play(Stage(streams), opened(stops=["<|im_end|>"], skip_special_tokens=False), [19556, 2, 905])
    assert (heard.text, heard.end.matched_stop, heard.end.num_output_tokens) == ("Hello", "<|im_end|>", 2)


@pytest.mark.parametrize(
    ("stops", "ids", "text"),
    [
        (["DEFGHIJ"], [33203, 23960, 57, 58, 59], "DEFGHIJ"),
        (["beta gamma"], [13433, 11345, 16439, 15184], "alpha beta gamma"),
        (["aab"], [11510, 369], "aaab"),
    ],
)
def test_include_stop_ends_behind_the_stop(streams: Streams, stops: list[str], ids: list[int], text: str) -> None:
    assert play(Stage(streams), opened(stops=stops, include_stop=True), ids).text == text


@pytest.mark.parametrize(("min_tokens", "used"), [(0, 1), (1, 2), (2, 3), (3, 4)])
def test_a_stop_before_min_tokens_is_text(streams: Streams, min_tokens: int, used: int) -> None:
    heard = play(Stage(streams), opened(stops=["a"], min_tokens=min_tokens), [81, 81, 81])
    if used <= 3:
        assert (heard.text, heard.end.num_output_tokens, heard.end.matched_stop) == ("a" * min_tokens, used, "a")
    else:
        assert (heard.text, heard.end.reason) == ("aaa", FinishReason.LENGTH)


@pytest.mark.parametrize("reason", list(FinishReason))
def test_every_end_carries_what_the_close_says_and_flushes_what_was_held(
    streams: Streams, reason: FinishReason
) -> None:
    stage = Stage(streams)
    stage.step([opened(stops=["<END>"])], {KEY: [342, 253, 2067]})
    assert stage.heard().text == "if a "
    close = Close(
        KEY,
        reason,
        failure=FailureReason.DEADLINE if reason == FinishReason.FAILED else FailureReason.NONE,
        detail="why",
        num_output_tokens=3,
        num_cached_tokens=16,
        matched_token=2 if reason == FinishReason.STOP else None,
        timings=Timings(1, 2, 3),
        retry_after_ms=250,
    )
    stage.step(closes=[close])
    end = stage.heard().end
    assert stage.heard().deltas == [("if a ", [342, 253, 2067]), ("<", [])]
    assert (end.reason, end.failure, end.detail, end.num_output_tokens) == (reason, close.failure, "why", 3)
    assert (end.num_cached_tokens, end.timings, end.retry_after_ms) == (16, Timings(1, 2, 3), 250)
    assert (end.matched_token, end.matched_stop) == (close.matched_token, None)
    assert stage.stop_hits == [] and len(streams) == 0


def test_a_character_cut_short_by_the_end_is_replaced(streams: Streams) -> None:
    heard = play(Stage(streams), opened(), [26843, 216, 10813, 235])
    assert heard.deltas == [("Hi", [26843]), (" ", [216]), ("", [10813]), ("", [235]), ("\ufffd", [])]


def test_the_replacement_at_the_end_may_complete_a_stop(streams: Streams) -> None:
    stage = Stage(streams)
    heard = play(stage, opened(stops=[" \ufffd"]), [26843, 216, 10813, 235])
    assert (heard.text, heard.end.reason, heard.end.matched_stop) == ("Hi", FinishReason.STOP, " \ufffd")
    assert heard.end.num_output_tokens == 4


def test_a_refusal_is_an_open_and_a_close(streams: Streams) -> None:
    stage = Stage(streams)
    stage.step([opened()], closes=[Close(KEY, FinishReason.FAILED, FailureReason.QUEUE_FULL, "full", retry_after_ms=9)])
    assert stage.heard().deltas == [] and stage.heard().end.failure == FailureReason.QUEUE_FULL
    assert len(streams) == 0


def test_a_stop_beats_the_close_of_its_own_batch_and_of_later_ones(streams: Streams) -> None:
    for closes_with in (0, 1, 2):
        stage = Stage(streams)
        key = SequenceKey("gateway-0", "late", closes_with, 0)
        stage.step([opened(key, ["Hello"])])
        for order in range(3):
            cancelled = Close(key, FinishReason.CANCELLED, num_output_tokens=order + 1)
            stage.step(tokens={key: [19556]}, closes=[cancelled] if order == closes_with else [])
            if order == closes_with:
                break
            assert len(streams) == 1
        assert stage.heard(key).deltas == [("", [19556])]
        assert (stage.heard(key).end.reason, stage.heard(key).end.num_output_tokens) == (FinishReason.STOP, 1)
        assert stage.stop_hits == [StopHit(key, 0)] and len(streams) == 0


def test_tokens_behind_a_stop_in_one_delta_are_not_delivered(streams: Streams) -> None:
    stage = Stage(streams)
    stage.step([opened(stops=["beta"])], {KEY: [13433, 11345, 16439, 15184]})
    assert stage.heard().deltas == [("alpha ", [13433, 11345])]
    assert stage.heard().end.num_output_tokens == 2


def test_each_index_and_each_incarnation_is_a_stream_of_its_own(streams: Streams) -> None:
    keys = [SequenceKey("gateway-0", "r", incarnation, index) for incarnation in (1, 2) for index in (0, 1)]
    stage = Stage(streams)
    stage.step([opened(key, ["Hello"] if key.index else []) for key in keys])
    stage.step(tokens={key: [19556] for key in keys})
    assert [stage.heard(key).text for key in keys] == ["Hello", "", "Hello", ""]
    stage.step(closes=[Close(key, FinishReason.LENGTH, num_output_tokens=1) for key in keys])
    assert [stage.heard(key).end.reason.name for key in keys] == ["LENGTH", "STOP", "LENGTH", "STOP"]


class TestLogprobs:
    @staticmethod
    def column(rows: list[int], counts: list[int], ids: list[int]) -> Logprobs:
        values = columns.pack_floats([-0.5 * order for order in range(len(ids))])
        ranks = columns.pack(range(1, len(ids) + 1))
        return Logprobs(columns.pack(rows), columns.pack(counts), columns.pack(ids), ranks, values)

    def batch(self, streams: Streams, deltas: Deltas, number: int = 1) -> TextBatch:
        return streams.absorb(TokenBatch(number, deltas=deltas)).texts["gateway-0"]

    def test_candidates_go_to_their_delta_with_their_bytes(self, streams: Streams, tokenizer: Tokenizer) -> None:
        keys = (KEY, SequenceKey("gateway-0", "other", 2, 0))
        streams.absorb(TokenBatch(0, opens=tuple(map(opened, keys))))
        logprobs = self.column([1, 1], [3, 1], [19556, 10813, 2, 905])
        deltas = Deltas(keys, columns.pack([1, 2]), columns.pack([81, 19556, 905]), logprobs)
        first, second = self.batch(streams, deltas).deltas
        assert first.logprobs == ()
        candidates = [[(c.token_id, c.rank, c.logprob, c.token_bytes) for c in t.candidates] for t in second.logprobs]
        assert candidates == [
            [(19556, 1, 0.0, b"Hello"), (10813, 2, -0.5, tokenizer.token_bytes(10813)), (2, 3, -1.0, b"<|im_end|>")],
            [(905, 4, -1.5, b" world")],
        ]

    def test_those_behind_a_stop_are_cut(self, streams: Streams) -> None:
        streams.absorb(TokenBatch(0, opens=(opened(stops=["Hello"]),)))
        logprobs = self.column([0, 0], [1, 1], [19556, 905])
        deltas = Deltas((KEY,), columns.pack([2]), columns.pack([19556, 905]), logprobs)
        (delta,) = self.batch(streams, deltas).deltas
        assert [entry.candidates[0].token_id for entry in delta.logprobs] == [19556]

    def test_those_of_the_prompt_wait_for_the_first_token(self, streams: Streams) -> None:
        """They arrive with the chunks of the prompt; the first token of a prompt has none."""
        streams.absorb(TokenBatch(0, opens=(opened(),)))
        for number, prompt in enumerate((self.column([0, 0], [0, 1], [81]), self.column([0], [1], [82])), 1):
            chunk = Deltas((KEY,), columns.pack([0]), columns.EMPTY, prompt_logprobs=prompt)
            assert streams.absorb(TokenBatch(number, deltas=chunk)).texts == {}
        for number, expected in ((3, [None, 81, 82]), (4, [])):
            (delta,) = self.batch(streams, Deltas((KEY,), columns.pack([1]), columns.pack([83])), number).deltas
            assert [entry and entry.candidates[0].token_id for entry in delta.prompt_logprobs] == expected

    def test_an_output_token_without_candidates_is_a_bug(self, streams: Streams) -> None:
        streams.absorb(TokenBatch(0, opens=(opened(),)))
        deltas = Deltas((KEY,), columns.pack([1]), columns.pack([81]), self.column([0], [0], []))
        with pytest.raises(AssertionError, match="without candidates"):
            self.batch(streams, deltas)


class TestBugs:
    @pytest.mark.parametrize(
        "batch",
        [
            TokenBatch(1, opens=(opened(), opened())),
            TokenBatch(1, deltas=Deltas((KEY,), columns.pack([1]), columns.pack([81]))),
            TokenBatch(1, closes=(Close(KEY, FinishReason.STOP),)),
            TokenBatch(1, opens=(opened(),), closes=(Close(KEY, FinishReason.STOP), Close(KEY, FinishReason.STOP))),
            TokenBatch(1, opens=(opened(),), deltas=Deltas((KEY,), columns.pack([2]), columns.pack([81]))),
            TokenBatch(1, opens=(opened(),), deltas=Deltas((KEY,), columns.pack([1]), columns.pack([-1]))),
        ],
        ids=["open twice", "stray delta", "stray close", "close twice", "short column", "negative id"],
    )
    def test_what_a_scheduler_must_not_say_is_loud(self, streams: Streams, batch: TokenBatch) -> None:
        with pytest.raises(AssertionError):
            streams.absorb(batch)


def test_an_end_by_stop_string_tells_what_the_start_told(streams: Streams) -> None:
    """It leaves before the close, so cached tokens and times come with the first token."""
    streams.absorb(TokenBatch(1, opens=(opened(stops=["Hello"]),)))
    deltas = Deltas((KEY,), columns.pack([1]), columns.pack([19556]))
    batch = TokenBatch(2, deltas=deltas, starts=(Start(KEY, 16, 250, 4000),))
    (end,) = streams.absorb(batch).texts["gateway-0"].ends
    assert (end.num_cached_tokens, end.timings) == (16, Timings(queue_us=250, prefill_us=4000))


def test_ids_beyond_the_vocabulary_stand_for_nothing_and_count(streams: Streams, tokenizer: Tokenizer) -> None:
    beyond, (first, second) = tokenizer.vocab_size, tokenizer.encode("Hello world", parse_special=False)
    heard = play(Stage(streams), opened(stops=["never"]), [first, beyond, second, beyond + 100])
    assert (heard.text, heard.end.num_output_tokens) == ("Hello world", 4)
    chosen = columns.pack([beyond])
    rows, counts, ranks = columns.pack([0]), columns.pack([1]), columns.pack([1])
    logprobs = Logprobs(rows, counts, chosen, ranks, columns.pack_floats([-1.0]))
    start = TokenBatch(10, opens=(opened(),), deltas=Deltas((KEY,), counts, chosen, logprobs))
    ((delta,),) = [batch.deltas for batch in streams.absorb(start).texts.values()]
    assert (delta.text, delta.logprobs[0].candidates[0].token_bytes) == ("", b"")
