"""Sampling cases through gRPC: the default model where numbers matter, the simulated backend where tokens are exact.

On the simulated backend each request must get what the definition draws for it alone; so what neighbours, the moment
of arrival and plans in flight could change is seen in a token.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jsonschema
import pytest

from services.executor.hash_cells import simulated_outputs
from services.wire import columns
from services.wire.messages import Sampling, SlotInit
from tandem import Client, Generation, TokenLogprobs, ToolCall
from tests.e2e.processes import Settings
from tests.e2e.serving import Serving, serving

CALL_S = 120.0
COMMON: Settings = {"gateway": {"listen": "127.0.0.1:0", "drain_s": 1.0}, "links": {"death_s": 60.0}}
CAPITAL = [504, 3575, 282, 4649, 314]  # "The capital of France is"
VOCAB, EOS, FAVOURITE = 49152, 2, 19556


@pytest.fixture(scope="module")
def model() -> Iterator[Client]:
    """The default model, its bounds wide enough for what the cases ask."""
    settings: Settings = {**COMMON, "executor": {"num_blocks": 512, "num_threads": 1}}
    with serving(settings) as server, Client(server.address) as client:
        yield client


@pytest.fixture(scope="module", params=[1, 3], ids=["no overlap", "three plans in flight"])
def overlapped(request: pytest.FixtureRequest) -> Iterator[Serving]:
    settings: Settings = {
        **COMMON,
        "executor": {"backend": "simulated", "num_blocks": 512, "step_fixed_us": 500.0},
        "scheduler": {"depth": request.param, "token_budget": 16},
    }
    with serving(settings) as server:
        yield server


@pytest.fixture(scope="module")
def simulated(overlapped: Serving) -> Iterator[Client]:
    with Client(overlapped.address) as client:
        yield client


def ids(client: Client, prompt: str | Sequence[int], **options: Any) -> list[int]:
    return list(client.generate(prompt, return_token_ids=True, timeout_s=CALL_S, **options).completions[0].token_ids)


def together(client: Client, prompt: str | Sequence[int], asked: Sequence[dict[str, Any]]) -> list[Generation]:
    """Several requests for one prompt at once: their steps are shared."""
    with ThreadPoolExecutor(len(asked)) as pool:
        work = [pool.submit(client.generate, prompt, timeout_s=CALL_S, **options) for options in asked]
        return [future.result() for future in work]


def scores(reply: Generation) -> list[TokenLogprobs]:
    """Of the first sequence, each of which must be there."""
    found = [score for score in reply.completions[0].logprobs if score is not None]
    assert len(found) == len(reply.completions[0].logprobs)
    return found


class TestTinyTemperatures:  # C28
    PROMPT = "San Francisco is a"

    def test_they_are_greedy_wherever_the_model_is_sure(self, model: Client) -> None:
        options: dict[str, Any] = {"max_tokens": 8, "seed": 1, "logprobs": 2, "return_token_ids": True}
        greedy = model.generate(self.PROMPT, temperature=0, **options)
        gaps = [score.top[0].logprob - score.top[1].logprob for score in scores(greedy)]
        expected = greedy.completions[0].token_ids
        assert len(expected) == 8 and min(gaps) > 20 * 1e-5
        temperatures = (1e-3, 1e-4, 1e-5, 1e-6, 1e-12, 1e-38)
        asked = [{**options, "temperature": temperature} for temperature in temperatures]
        for temperature, drawn in zip(temperatures, together(model, self.PROMPT, asked), strict=True):
            sure = next((index for index, gap in enumerate(gaps) if gap <= 20 * temperature), len(gaps))
            assert drawn.completions[0].token_ids[:sure] == expected[:sure]
            assert all(math.isfinite(score.chosen.logprob) for score in scores(drawn))


class TestFilters:  # C31
    """Four tokens may be drawn; what the model finds of each is known, so what is kept can be worked out."""

    CUTS = ((None, 1e-4), (2, 0.5), (3, 0.9), (1, 1.0))

    def test_what_is_kept_is_drawn_and_nothing_else(self, model: Client) -> None:
        (score,) = scores(model.generate(CAPITAL, max_tokens=1, temperature=0, logprobs=4))
        likely = [(candidate.token_id, candidate.logprob) for candidate in score.top]
        shared: dict[str, Any] = {"max_tokens": 1, "seed": 1, "n": 6, "return_token_ids": True}
        shared["allowed_token_ids"] = [token_id for token_id, _ in likely]
        asked = [{**shared, "top_k": top_k, "top_p": top_p} for top_k, top_p in self.CUTS]
        for (top_k, top_p), reply in zip(self.CUTS, together(model, CAPITAL, asked), strict=True):
            kept = nucleus(likely[:top_k], top_p)
            drawn = Counter(completion.token_ids[0] for completion in reply.completions)
            assert drawn.keys() <= set(kept) and kept[0] in drawn
            assert len(kept) > 1 or drawn == {kept[0]: 6}


def nucleus(likely: Sequence[tuple[int, float]], top_p: float) -> list[int]:
    """The fewest of the likeliest tokens that hold top_p of the probability of all of these."""
    total = sum(math.exp(logprob) for _, logprob in likely)
    kept, mass = [], 0.0
    for token_id, logprob in likely:
        if mass < top_p:
            kept.append(token_id)
            mass += math.exp(logprob) / total
    return kept


@dataclass(frozen=True)
class Ask:
    """A request in the words of a client, and in those of the wire."""

    prompt: Sequence[int]
    max_tokens: int
    seed: int
    options: dict[str, Any]
    sampling: Sampling

    def sent(self, client: Client) -> list[int]:
        return ids(client, self.prompt, max_tokens=self.max_tokens, seed=self.seed, ignore_eos=True, **self.options)

    def due(self) -> list[int]:
        """What the definition draws for it alone."""
        op = SlotInit(1, 1, self.sampling, self.seed, len(self.prompt))
        outputs = simulated_outputs(op, self.prompt, self.max_tokens, VOCAB)
        return [token for token in outputs if token is not None]


def ask(max_tokens: int, seed: int, options: dict[str, Any], sampling: Sampling) -> Ask:
    return Ask([*CAPITAL, 40 + seed, 40 + max_tokens], max_tokens, seed, options, sampling)


BIASED = Sampling(temperature=0.0, bias_token_ids=columns.pack([FAVOURITE]), bias_values=columns.pack_floats([9.0]))
SIX = [
    ask(3, 0, {"temperature": 0}, Sampling(temperature=0.0)),
    ask(9, 1, {"temperature": 0.7}, Sampling(temperature=0.7)),
    ask(5, 2, {"top_k": 5}, Sampling(top_k=5)),
    ask(12, 3, {"temperature": 0, "repetition_penalty": 1.3}, Sampling(temperature=0.0, repetition_penalty=1.3)),
    ask(7, 4, {"temperature": 0, "logit_bias": {FAVOURITE: 9.0}}, BIASED),
    ask(20, 5, {"min_p": 0.2}, Sampling(min_p=0.2)),
]
TWO_MORE = [
    ask(10, 6, {"presence_penalty": 2, "frequency_penalty": 0.5}, Sampling(presence_penalty=2, frequency_penalty=0.5)),
    ask(10, 7, {"top_p": 0.4, "temperature": 1.5}, Sampling(top_p=0.4, temperature=1.5)),
]


class TestCompany:  # C33, C34, C35, C43
    @pytest.mark.parametrize("order", [1, -1], ids=["as they are", "reversed"])
    def test_everybody_gets_what_it_gets_alone(self, simulated: Client, order: int) -> None:
        asks = SIX[::order]
        with ThreadPoolExecutor(8) as pool:
            first = [pool.submit(each.sent, simulated) for each in asks]
            # The shortest has ended by then, and rows have moved.
            min(first, key=lambda future: asks[first.index(future)].max_tokens).result()
            later = [pool.submit(each.sent, simulated) for each in TWO_MORE]
            outputs = [future.result() for future in (*first, *later)]
        assert outputs == [each.due() for each in (*asks, *TWO_MORE)]

    def test_penalties_see_the_token_before_the_last_step_is_told(self, simulated: Client) -> None:
        repeating = Ask(
            CAPITAL * 3, 32, 9, {"temperature": 0, "repetition_penalty": 1.3}, Sampling(0.0, repetition_penalty=1.3)
        )
        avoiding = Ask(CAPITAL, 32, 9, {"temperature": 0, "presence_penalty": 2}, Sampling(0.0, presence_penalty=2.0))
        plain = Ask(CAPITAL, 32, 9, {"temperature": 0}, Sampling(temperature=0.0))
        for each in (repeating, avoiding, plain):
            assert each.sent(simulated) == each.due()
        assert len(set(avoiding.due())) > len(set(plain.due())) or plain.due() != avoiding.due()

    def test_a_seed_belongs_to_its_request(self, simulated: Client) -> None:
        mine = Ask(CAPITAL, 16, 42, {"temperature": 0.8}, Sampling(temperature=0.8))
        assert mine.sent(simulated) == mine.due()
        for num_neighbours in (1, 7):
            with ThreadPoolExecutor(8) as pool:
                early = [
                    pool.submit(ids, simulated, CAPITAL, max_tokens=20, seed=n) for n in range(num_neighbours // 2)
                ]
                me = pool.submit(mine.sent, simulated)
                late = [pool.submit(ids, simulated, CAPITAL, max_tokens=20) for _ in range(num_neighbours - len(early))]
                assert me.result() == mine.due()
                assert all(future.result() for future in (*early, *late))
        other = Ask(CAPITAL, 16, 43, {"temperature": 0.8}, Sampling(temperature=0.8))
        assert other.sent(simulated) != mine.due()

    def test_one_seed_draws_on(self, simulated: Client) -> None:
        """A generator that began anew at each step would draw one token a thousand times."""
        drawn = Counter(ids(simulated, CAPITAL, max_tokens=1000, seed=5, allowed_token_ids=[50, 51, 52, 53]))
        assert set(drawn) == {50, 51, 52, 53}


class TestOneToken:  # C23
    def test_no_step_is_spent_on_a_sequence_that_is_over(self, overlapped: Serving, simulated: Client) -> None:
        before = overlapped.idle(overlapped.position())
        for _ in range(5):
            reply = simulated.generate(CAPITAL, max_tokens=1, return_token_ids=True)
            assert (len(reply.completions[0].token_ids), reply.completions[0].finish.reason) == (1, "length")
        after = overlapped.idle(overlapped.position())
        assert after["num_wasted_rows"] == before["num_wasted_rows"]
        assert after["num_free_blocks"] == after["num_blocks"]


class TestSeedOnTheModel:  # C35
    def test_neighbours_change_no_token(self, model: Client) -> None:
        options: dict[str, Any] = {"seed": 42, "temperature": 0.8, "max_tokens": 10, "ignore_eos": True}
        alone = ids(model, "The capital of France is", **options)
        with ThreadPoolExecutor(8) as pool:
            others = [pool.submit(ids, model, f"Story {n}:", max_tokens=12, temperature=1.2) for n in range(7)]
            assert pool.submit(ids, model, "The capital of France is", **options).result() == alone
            assert all(future.result() for future in others)
        assert ids(model, "The capital of France is", **{**options, "seed": 43}) != alone


class TestLogprobs:  # C39
    def test_entries_and_ranks(self, model: Client) -> None:
        shared: dict[str, Any] = {"max_tokens": 4, "seed": 3, "return_token_ids": True}
        asked = [{**shared, "logprobs": k, "temperature": temperature} for k in (0, 1, 5) for temperature in (0, 1.5)]
        for options, reply in zip(asked, together(model, CAPITAL, asked), strict=True):
            self.check(reply, options["logprobs"], is_greedy=not options["temperature"])

    @staticmethod
    def check(reply: Generation, k: int, is_greedy: bool) -> None:
        found = scores(reply)
        assert [score.chosen.token_id for score in found] == list(reply.completions[0].token_ids)
        for score in found:
            assert [candidate.rank for candidate in score.top] == list(range(1, k + 1))
            assert all(before.logprob >= after.logprob for before, after in pairwise(score.top))
            listed = {candidate.token_id: candidate for candidate in (*score.top, score.chosen)}
            assert sum(math.exp(candidate.logprob) for candidate in listed.values()) <= 1 + 1e-6
            assert (score.chosen in score.top) == (score.chosen.rank <= k)
            assert score.chosen.rank == 1 or not is_greedy

    def test_none_when_not_asked_for(self, model: Client) -> None:
        reply = model.generate(CAPITAL, max_tokens=4)
        assert (reply.completions[0].logprobs, reply.prompt_logprobs) == ((), ())

    def test_values_are_the_models_own_whatever_is_drawn(self, model: Client) -> None:
        values = []
        asked: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 1.5, "top_k": 5, "seed": 4}]
        for options in asked:
            reply = model.generate(CAPITAL, max_tokens=1, logprobs=5, **options)
            values.append({each.token_id: each.logprob for each in scores(reply)[0].top})
        assert values[0] == pytest.approx(values[1], abs=1e-4)

    def test_the_prompts(self, model: Client) -> None:
        asked = [{"max_tokens": 1, "prompt_logprobs": k} for k in (0, 2)]
        # The same judgement as when the prompt ends there.
        judged = [model.generate(CAPITAL[:size], max_tokens=1, temperature=0, logprobs=5) for size in range(1, 5)]
        for reply, options in zip(together(model, CAPITAL, asked), asked, strict=True):
            first, *rest = reply.prompt_logprobs
            assert first is None and len(rest) == len(CAPITAL) - 1
            for index, score in enumerate(rest):
                assert score is not None and score.chosen.token_id == CAPITAL[index + 1]
                self.compare(score, scores(judged[index])[0], options["prompt_logprobs"])

    @staticmethod
    def compare(score: TokenLogprobs, shorter: TokenLogprobs, k: int) -> None:
        assert [each.rank for each in score.top] == list(range(1, k + 1))
        known = {each.token_id: each for each in shorter.top}
        assert [each.token_id for each in score.top] == [each.token_id for each in shorter.top[:k]]
        if score.chosen.token_id in known:
            assert score.chosen.logprob == pytest.approx(known[score.chosen.token_id].logprob, abs=1e-3)
            assert score.chosen.rank == known[score.chosen.token_id].rank

    def test_an_echo_joins_the_prompts_and_the_outputs(self, model: Client) -> None:
        reply = model.generate(CAPITAL, max_tokens=3, temperature=0, logprobs=1, echo=True, return_token_ids=True)
        (completion,) = reply.completions
        assert completion.text.startswith("The capital of France is")
        assert list(completion.token_ids[:5]) == CAPITAL and len(completion.token_ids) == 8
        chosen = [None if score is None else score.chosen.token_id for score in completion.logprobs]
        assert chosen == [None, *completion.token_ids[1:]]
        spelled = "".join(score.chosen.text or "" for score in completion.logprobs if score is not None)
        assert completion.text == "The" + spelled

    def test_parts_of_characters_are_bytes(self, model: Client) -> None:
        reply = model.generate("日本", max_tokens=1, prompt_logprobs=0)
        pieces = [score.chosen for score in reply.prompt_logprobs if score is not None]
        assert b"".join(piece.raw for piece in pieces) and any(piece.text is None for piece in pieces)
        assert all(piece.text is None or piece.text.encode() == piece.raw for piece in pieces)


class TestBiases:  # C41
    def test_the_favourite_is_always_drawn_and_the_banned_never(self, model: Client) -> None:
        plain: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
        with ThreadPoolExecutor(3) as pool:
            neighbour = pool.submit(ids, model, CAPITAL, **plain)
            assert ids(model, CAPITAL, logit_bias={FAVOURITE: 100}, **plain) == [FAVOURITE] * 6
            (score,) = scores(model.generate(CAPITAL, max_tokens=1, temperature=0, logprobs=2))
            best, second = (candidate.token_id for candidate in score.top)
            banned = ids(model, CAPITAL, logit_bias={best: -100}, **{**plain, "max_tokens": 1})
            assert banned == [second]
            assert neighbour.result() == ids(model, CAPITAL, **plain)
        assert ids(model, CAPITAL, allowed_token_ids=[7, 9], **plain)[0] in (7, 9)

    def test_bad_words_are_not_put_out(self, model: Client) -> None:
        plain: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
        answer = model.generate("The capital of France is", **plain)
        assert "Paris" in answer.text
        for words in (["Paris"], [" Paris"]):
            assert "Paris" not in model.generate("The capital of France is", bad_words=words, **plain).text


class TestMinTokens:  # C26
    """Logits by bias: the end is the likeliest, the favourite comes next, whatever the context."""

    ENDING = {EOS: 90.0, FAVOURITE: 65.0}  # noqa: RUF012

    def check(self, client: Client) -> None:
        options: dict[str, Any] = {"temperature": 0, "logit_bias": self.ENDING}
        reply = client.generate(CAPITAL, min_tokens=3, max_tokens=10, return_token_ids=True, **options)
        assert list(reply.completions[0].token_ids) == [FAVOURITE] * 3 + [EOS]
        assert (reply.completions[0].finish.reason, reply.usage.completion_tokens) == ("stop", 4)
        stopped = ids(client, CAPITAL, min_tokens=3, max_tokens=10, stop_token_ids=[FAVOURITE], **options)
        assert not {EOS, FAVOURITE} & set(stopped[:3]) and stopped[3:] == [EOS]
        reply = client.generate(CAPITAL, ignore_eos=True, max_tokens=5, return_token_ids=True, **options)
        assert (reply.text, list(reply.completions[0].token_ids)) == ("", [EOS] * 5)
        assert reply.completions[0].finish.reason == "length"

    def test_on_the_model(self, model: Client) -> None:
        self.check(model)

    def test_at_every_depth(self, simulated: Client) -> None:
        self.check(simulated)


class TestTools:
    """A model too small to be trusted with a free answer calls what it must, in the form that it must."""

    CITY: dict[str, Any] = {"type": "string", "maxLength": 20}  # noqa: RUF012
    WEATHER: dict[str, Any] = {  # noqa: RUF012
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": CITY},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
    ASKED: list[dict[str, Any]] = [{"role": "user", "content": "How is the weather in Rome?"}]  # noqa: RUF012

    @pytest.mark.parametrize("choice", ["required", "weather"])
    def test_a_call_keeps_to_its_schema_and_its_answer_goes_back(self, model: Client, choice: str) -> None:
        options: dict[str, Any] = {"tools": [self.WEATHER], "temperature": 0, "max_tokens": 60}
        reply = model.chat(self.ASKED, tool_choice=choice, parallel_tool_calls=False, **options)
        (call,) = reply.tool_calls
        assert (reply.text, call.name, reply.completions[0].finish.reason) == ("", "weather", "tool_calls")
        jsonschema.validate(call.parsed(), self.WEATHER["parameters"])
        chunks = list(model.stream_chat(self.ASKED, tool_choice=choice, parallel_tool_calls=False, **options))
        pieces = [piece for chunk in chunks for piece in chunk.tool_calls]
        (streamed,) = ToolCall.joined(pieces)
        assert (streamed.name, streamed.arguments) == (call.name, call.arguments) and streamed.id != call.id
        assert len(pieces) > 2 and not any(chunk.text for chunk in chunks)
        talk = [*self.ASKED, reply.completions[0].message, call.answered("sunny")]
        goes_on = model.chat(talk, **{**options, "max_tokens": 2})
        assert goes_on.usage.prompt_tokens > reply.usage.prompt_tokens
