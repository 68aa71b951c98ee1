"""Which fields of a request are wrong, worked out a second time from the words of the contract.

What is judged before the prompt is read: a refusal names all of these fields at once. Knows the limits that GetModel
tells, and the tokens of words.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.runtime.settings import GatewaySettings
from services.tokenizer import Tokenizer
from tandem.v1 import chat_pb2, common_pb2, inference_pb2, models_pb2

Request = inference_pb2.GenerateRequest | chat_pb2.ChatRequest
MAX_FLOAT32 = 3.4028234663852886e38
EOS = 2


@dataclass(frozen=True)
class Rules:
    """One server's."""

    model: models_pb2.Model
    tokenizer: Tokenizer
    settings: GatewaySettings

    @property
    def limits(self) -> models_pb2.Limits:
        return self.model.limits


def wrong_fields(rules: Rules, request: Request) -> tuple[set[str], set[str]]:
    """The fields that must be named, and those that may be, since they build on others that are wrong."""
    wrong = {*_call(rules, request), *_sampling(rules, request), *_stopping(rules, request.stopping)}
    wrong |= {*_output(rules, request)}
    if isinstance(request, chat_pb2.ChatRequest):
        wrong |= {*_tools(rules, request)}
    depends = set()
    if any(name.startswith(("sampling.bad_words", "stopping.")) for name in wrong):
        depends.add("sampling.allowed_token_ids")
    kind = f"sampling.{constraint_of(request)}"
    if any(name.startswith("tools") for name in wrong):
        depends |= {kind, "tool_choice.name", "tool_choice.mode"}
    if wrong & {"tool_choice.name", "tool_choice.mode"}:
        depends.add(kind)  # without a choice of tools nothing is known to exclude a constraint
    if any(name.startswith(f"{kind}.") for name in wrong):
        depends.add(kind)
    return wrong - depends, depends


def constraint_of(request: Request) -> str | None:
    """The constraint that a request sets, by its field."""
    kind = request.sampling.WhichOneof("constraint")
    return None if kind == "json_object" and not request.sampling.json_object else kind


def parsed(text: str) -> object:
    """The value of a JSON text; None for what is none, or for too deep a one."""
    try:
        value: object = json.loads(text, parse_constant=int)
    except (ValueError, RecursionError):
        return None
    return value if text.count("[") + text.count("{") < 64 else None


def _call(rules: Rules, request: Request) -> Iterator[str]:
    limits, request_id = rules.limits, request.request_id
    if len(request_id) > limits.max_request_id_chars or not re.fullmatch(r"[!-~]*", request_id):
        yield "request_id"
    if len(request.tenant) > limits.max_tenant_chars:
        yield "tenant"
    if len(request.cache_salt) > limits.max_cache_salt_chars:
        yield "cache_salt"
    for name in ("timeout_ms", "truncate_prompt_tokens"):
        if request.HasField(name) and not getattr(request, name):
            yield name


def _sampling(rules: Rules, request: Request) -> Iterator[str]:
    sampling, limits = request.sampling, rules.limits
    ranges = {
        "temperature": (0.0, MAX_FLOAT32),
        "top_p": (5e-324, 1.0),
        "min_p": (0.0, 1.0),
        "top_k": (-1, 2**31),
        "n": (1, limits.max_n),
        "repetition_penalty": (0.01, 100.0),
        "presence_penalty": (-2.0, 2.0),
        "frequency_penalty": (-2.0, 2.0),
    }
    for name, (low, high) in ranges.items():
        if sampling.HasField(name) and not low <= getattr(sampling, name) <= high:
            yield f"sampling.{name}"
    if len(sampling.logit_bias) > limits.max_logit_bias:
        yield "sampling.logit_bias"
    else:
        biases = sorted(sampling.logit_bias.items())
        stray = [i for i, bias in biases if i >= rules.model.vocab_size or not -100 <= bias <= 100]
        yield from (f"sampling.logit_bias[{token_id}]" for token_id in stray[:1])
    yield from _ids(rules, "sampling.allowed_token_ids", sampling.allowed_token_ids, limits.max_allowed_token_ids)
    bounds = (limits.max_bad_words, limits.max_bad_word_chars)
    yield from _texts(rules, "sampling.bad_words", sampling.bad_words, bounds, fewest_tokens=1)
    if _leaves_nothing(rules, request):
        yield "sampling.allowed_token_ids"
    yield from _constraint(rules, sampling)


def _leaves_nothing(rules: Rules, request: Request) -> bool:
    """Whether everything that is allowed is forbidden too."""
    sampling, stopping, special_id = request.sampling, request.stopping, rules.tokenizer.special_id
    if not sampling.allowed_token_ids or max(sampling.allowed_token_ids) >= rules.model.vocab_size:
        return False
    forbidden = {special_id(word) for word in sampling.bad_words}
    for word in sampling.bad_words:
        for spelling in (word, f" {word}"):
            token_ids = rules.tokenizer.encode(spelling, False)
            forbidden |= set(token_ids if len(token_ids) == 1 and special_id(word) is None else ())
    if stopping.min_tokens:
        forbidden |= {*stopping.stop_token_ids, *map(special_id, stopping.stop)}
        forbidden |= set() if stopping.ignore_eos else {EOS}
    return forbidden.issuperset(sampling.allowed_token_ids)


def _constraint(rules: Rules, sampling: common_pb2.Sampling) -> Iterator[str]:
    kind, most = sampling.WhichOneof("constraint"), rules.limits.max_constraint_bytes
    if kind == "choice":
        texts = sampling.choice.texts
        if not 1 <= len(texts) <= rules.limits.max_choices or sum(len(text.encode()) for text in texts) > most:
            yield "sampling.choice.texts"
        elif "" in texts:
            yield f"sampling.choice.texts[{list(texts).index('')}]"
    elif kind not in (None, "json_object"):
        source = str(getattr(sampling, str(kind)))
        is_schema = isinstance(parsed(source), dict | bool)
        if not 1 <= len(source.encode()) <= most or (kind == "json_schema" and not is_schema):
            yield f"sampling.{kind}"


def _stopping(rules: Rules, stopping: common_pb2.Stopping) -> Iterator[str]:
    limits = rules.limits
    if stopping.HasField("max_tokens") and stopping.max_tokens == 0:
        yield "stopping.max_tokens"
    elif stopping.HasField("max_tokens") and stopping.min_tokens > stopping.max_tokens:
        yield "stopping.min_tokens"
    bounds = (limits.max_stop_strings, limits.max_stop_string_chars)
    yield from _texts(rules, "stopping.stop", stopping.stop, bounds, fewest_tokens=0)
    yield from _ids(rules, "stopping.stop_token_ids", stopping.stop_token_ids, limits.max_stop_token_ids)


def _output(rules: Rules, request: Request) -> Iterator[str]:
    output = request.output
    if output.logprobs > rules.limits.max_logprobs:
        yield "output.logprobs"
    if output.prompt_logprobs > rules.limits.max_logprobs:
        yield "output.prompt_logprobs"
    if output.HasField("max_tokens_per_message") and output.max_tokens_per_message == 0:
        yield "output.max_tokens_per_message"
    if output.echo and isinstance(request, chat_pb2.ChatRequest):
        yield "output.echo"


def _tools(rules: Rules, request: chat_pb2.ChatRequest) -> Iterator[str]:
    choice, limits, tools = request.tool_choice, rules.limits, list(request.tools)
    size = sum(len(text.encode()) for tool in tools for text in (tool.name, tool.description, tool.parameters))
    if len(tools) > limits.max_tools or size > limits.max_tool_bytes:
        yield "tools"
        tools = []
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", tool.name) or tool.name in names:
            yield f"tools[{index}].name"
        schema = parsed(tool.parameters) if tool.HasField("parameters") else {}
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            yield f"tools[{index}].parameters"
        else:
            names.add(tool.name)
    if choice.WhichOneof("choice") == "name":
        if choice.name not in names:
            yield "tool_choice.name"
    elif choice.mode not in (0, 1, 2, 3) or (choice.mode == chat_pb2.TOOL_MODE_REQUIRED and not names):
        yield "tool_choice.mode"
    if names and choice.mode != chat_pb2.TOOL_MODE_NONE and constraint_of(request):
        yield f"sampling.{constraint_of(request)}"


def _ids(rules: Rules, name: str, ids: Sequence[int], most: int) -> Iterator[str]:
    stray = [index for index, token_id in enumerate(ids) if token_id >= rules.model.vocab_size]
    if len(ids) > most:
        yield name
    elif stray:
        yield f"{name}[{stray[0]}]"


def _texts(rules: Rules, name: str, texts: Sequence[str], bounds: tuple[int, int], fewest_tokens: int) -> Iterator[str]:
    if len(texts) > bounds[0]:
        yield name
        return
    for index, text in enumerate(texts):
        if not 1 <= len(text) <= bounds[1] or len(rules.tokenizer.encode(text, False)) < fewest_tokens:
            yield f"{name}[{index}]"
            return
