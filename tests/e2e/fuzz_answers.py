"""What must become of a request as a whole, and whether an answer is one that it could get on the echo backend.

Builds on the oracle of fields: the prompt, the context, and what the engine alone can judge come after them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

from gateway.conversations import for_template
from gateway.tools import read_tools
from tandem.v1 import chat_pb2, common_pb2, inference_pb2, models_pb2
from tests.e2e.fuzz_oracle import EOS, Request, Rules, constraint_of, wrong_fields
from tests.e2e.fuzz_requests import GRAMMARS, REGEXES, SCHEMAS

SHORT_MS = 60_000
DEADLINES = frozenset({"DEADLINE", "DEADLINE_UNREACHABLE"})
COMPILES = frozenset({*SCHEMAS, *REGEXES, *GRAMMARS})


@dataclass(frozen=True)
class Refusal:
    """A reason, and the fields that are named; may_name: further ones."""

    reason: str
    fields: frozenset[str] = frozenset()
    may_name: frozenset[str] = frozenset()

    def covers(self, reason: str, fields: frozenset[str]) -> bool:
        return reason == self.reason and self.fields <= fields <= self.fields | self.may_name


@dataclass(frozen=True)
class Verdict:
    """The refusals that are right, if any must or may be; prompt: its tokens, when the request may be answered. opens:
    its call is entered before that is known, and so may meet a live one with its id."""

    refusals: tuple[Refusal, ...] = ()
    may_be_answered: bool = False
    opens: bool = True
    prompt: list[int] = field(default_factory=list)


def judge(rules: Rules, request: Request) -> Verdict:
    """What must become of a request that nobody interferes with."""
    if request.model not in ("", rules.model.name):
        return Verdict((Refusal("MODEL_NOT_FOUND"),), opens=False)
    wrong, depends = wrong_fields(rules, request)
    if wrong:
        return Verdict((Refusal("INVALID_FIELD", frozenset(wrong), frozenset(depends)),), opens=False)
    prompt = _raw(rules, request) if isinstance(request, inference_pb2.GenerateRequest) else _talk(rules, request)
    if isinstance(prompt, set):
        return Verdict((Refusal("INVALID_FIELD", frozenset(prompt)),))
    refusal = _beyond_context(rules, request.stopping, len(prompt))
    if refusal is not None:
        return Verdict((refusal,))
    refusals = [Refusal(reason) for reason in DEADLINES if 0 < request.timeout_ms < SHORT_MS]
    kind = constraint_of(request)
    if kind is not None and str(getattr(request.sampling, kind)) not in COMPILES:
        refusals.append(Refusal("INVALID_FIELD", frozenset({f"sampling.{kind}"})))
    return Verdict(tuple(refusals), may_be_answered=True, prompt=prompt)


def _raw(rules: Rules, request: inference_pb2.GenerateRequest) -> list[int] | set[str]:
    """The prompt's tokens, or the fields that are wrong."""
    kind = request.WhichOneof("prompt")
    if kind is None:
        return {"prompt"}
    keep = request.truncate_prompt_tokens
    if kind == "token_ids":
        ids = list(request.token_ids.ids)
        stray = [index for index, token_id in enumerate(ids) if token_id >= rules.model.vocab_size]
        if stray and (keep or len(ids) < rules.model.context_length):
            return {f"token_ids.ids[{stray[0]}]"}
        return ids[-keep:] or {"token_ids.ids"}
    if len(request.text.encode()) > rules.limits.max_prompt_bytes:
        return {"text"}
    return rules.tokenizer.encode_prompt(request.text)[-keep:] or {"text"}


def _talk(rules: Rules, request: chat_pb2.ChatRequest) -> list[int] | set[str]:
    limits, messages = rules.limits, request.messages
    if not 1 <= len(messages) <= limits.max_chat_messages:
        return {"messages"}
    wrong = {name for index, message in enumerate(messages) for name in _wrong_in(message, index, limits)}
    words = [text for tool in request.tools for text in (tool.name, tool.description, tool.parameters)]
    for message in messages:
        words += [message.content, *(text for call in message.tool_calls for text in (call.name, call.arguments))]
    if wrong:
        return wrong
    if sum(len(word.encode()) for word in words) > limits.max_prompt_bytes:
        return {"messages"}
    # What a template makes of a conversation is tested elsewhere; here only its length matters.
    tools = read_tools(request, [], rules.settings)
    return rules.tokenizer.encode_chat(for_template(request, tools, False))[-request.truncate_prompt_tokens :]


def _wrong_in(message: chat_pb2.ChatMessage, index: int, limits: models_pb2.Limits) -> Iterator[str]:
    is_answer = message.role == chat_pb2.ROLE_TOOL
    if message.role not in (1, 2, 3, 4):
        yield f"messages[{index}].role"
    if len(message.tool_calls) > (limits.max_tool_calls if message.role == chat_pb2.ROLE_ASSISTANT else 0):
        yield f"messages[{index}].tool_calls"
    if is_answer != bool(message.tool_call_id) or len(message.tool_call_id) > 128:
        yield f"messages[{index}].tool_call_id"


def _beyond_context(rules: Rules, stopping: common_pb2.Stopping, num_prompt_tokens: int) -> Refusal | None:
    left = rules.model.context_length - num_prompt_tokens
    most = stopping.max_tokens if stopping.HasField("max_tokens") else left
    if left <= 0 or most > left:
        return Refusal("CONTEXT_LENGTH_EXCEEDED")
    if stopping.min_tokens > most:
        return Refusal("INVALID_FIELD", frozenset({"stopping.min_tokens"}))
    return None


# Answers ------------------------------------------------------------------------------------------------------------

Scores = Sequence[common_pb2.TokenLogprobs]


@dataclass
class Heard:
    """One sequence as its client put it together."""

    token_ids: list[int] = field(default_factory=list)
    num_tokens: int = 0
    scores: list[common_pb2.TokenLogprobs] = field(default_factory=list)
    finish: common_pb2.Finish | None = None


@dataclass
class Answer:
    """A call that ended well."""

    sequences: dict[int, Heard] = field(default_factory=dict)
    prompt_scores: list[common_pb2.TokenLogprobs] = field(default_factory=list)
    usage: common_pb2.Usage | None = None


def check(rules: Rules, request: Request, prompt: list[int], answer: Answer) -> None:
    """Fails unless the request could get this answer: output token i is prompt token i, over and over."""
    usage = answer.usage
    assert usage is not None and usage.prompt_tokens == len(prompt)
    assert sorted(answer.sequences) == list(range(request.sampling.n or 1))
    assert usage.completion_tokens == sum(heard.num_tokens for heard in answer.sequences.values())
    output = request.output
    for heard in answer.sequences.values():
        num_tokens, reason = _end(rules, request, prompt)
        assert heard.finish is not None and heard.num_tokens <= num_tokens
        if not request.stopping.stop:
            assert heard.num_tokens == num_tokens and heard.finish.reason == reason
        expected = [*(prompt if output.echo else ()), *islice(cycle(prompt), heard.num_tokens)]
        assert heard.token_ids == (expected if output.return_token_ids else [])
        _check_scores(heard.scores, expected if output.HasField("logprobs") else [], len(prompt) * output.echo)
    _check_scores(answer.prompt_scores, prompt if output.HasField("prompt_logprobs") else [], len(prompt))


def _end(rules: Rules, request: Request, prompt: list[int]) -> tuple[int, int]:
    """How many tokens there are, and why not more, as far as texts do not matter."""
    stopping = request.stopping
    specials = [rules.tokenizer.special_id(stop) for stop in stopping.stop]
    ends = {*stopping.stop_token_ids, *specials, *(() if stopping.ignore_eos else (EOS,))}
    left = rules.model.context_length - len(prompt)
    most = stopping.max_tokens if stopping.HasField("max_tokens") else left
    is_constrained = constraint_of(request) is not None or _must_call(request)
    for number, token_id in enumerate(islice(cycle(prompt), most), 1):
        if (token_id in ends and number > stopping.min_tokens) or (is_constrained and token_id == EOS):
            return number, common_pb2.FINISH_REASON_STOP
    return most, common_pb2.FINISH_REASON_LENGTH


def _must_call(request: Request) -> bool:
    """Whether the answer must be a call of a tool, which is a constraint too."""
    if not isinstance(request, chat_pb2.ChatRequest):
        return False
    choice = request.tool_choice
    return choice.WhichOneof("choice") == "name" or choice.mode == chat_pb2.TOOL_MODE_REQUIRED


def _check_scores(scores: Scores, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
    """One entry a token; the first of a prompt has none of its own."""
    chosen = [score.chosen.token_id if score.HasField("chosen") else None for score in scores]
    assert chosen == [None if num_prompt_tokens and not index else token_id for index, token_id in enumerate(token_ids)]
