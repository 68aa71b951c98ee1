"""What a request may ask for, as keyword arguments of Client and AsyncClient.

An option that is absent or None is left to the server's default. The server judges values; its bounds ("at most
max_...") are told by Model.limits. See docs/requests.md for examples.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict

from tandem.tool_calls import ToolCall


class SchemaModel(Protocol):
    """A class that knows its own JSON Schema, such as a pydantic model."""

    def model_json_schema(self) -> dict[str, Any]:
        """The JSON Schema of its values."""


# A JSON Schema: as a mapping, as JSON text, or a class that knows its own.
Schema = Mapping[str, Any] | str | bool | SchemaModel
# {"name", "description", "parameters"}, in OpenAI's envelope or without; parameters is a Schema.
ToolSpec = Mapping[str, Any]
# A tool's name in a mapping says that tool, even one whose name is "auto".
ToolChoice = Literal["auto", "none", "required"] | str | Mapping[str, Any]
# "role" (system, user, assistant, tool), "content", and of an assistant "tool_calls", of a tool "tool_call_id".
MessageSpec = Mapping[str, Any]
CallSpec = Mapping[str, Any] | ToolCall


class Options(TypedDict, total=False):
    """Every option, its range and its default.

    The call:

    - request_id: 1 to max_request_id_chars printable ASCII characters; one live call each. Default: the server's.
    - model: the name of a model that is served. Default: the one that is.
    - priority: any int32; higher is served first. Default 0.
    - tenant: at most max_tenant_chars characters; tenants share the engine fairly. Default "".
    - timeout_ms: milliseconds from the call's arrival, >= 1; the deadline `timeout_s` holds beside it. Default: none.
    - truncate_prompt_tokens: keeps the last so many tokens of the prompt, >= 1. Default: all.
    - cache_salt: at most max_cache_salt_chars characters; only calls with the same share cached prompts. Default "".

    How tokens are drawn:

    - temperature: >= 0; 0 takes the likeliest token. Default 1.
    - top_p: > 0 and <= 1; keeps the likeliest tokens up to this probability. Default 1, off.
    - top_k: >= -1; keeps so many of the likeliest tokens. Default 0, off, as -1.
    - min_p: 0 to 1; drops tokens less likely than this times the likeliest. Default 0, off.
    - repetition_penalty: 0.01 to 100; divides the logits of tokens of prompt and output. Default 1, off.
    - presence_penalty: -2 to 2; taken from the logits of tokens of the output. Default 0, off.
    - frequency_penalty: -2 to 2; the same for each time a token stands there. Default 0, off.
    - logit_bias: token id to a bias of -100 to 100, at most max_logit_bias. Default: none.
    - allowed_token_ids: the only tokens that may be drawn, at most max_allowed_token_ids. Default: all.
    - bad_words: texts that the output may not contain as words, at most max_bad_words. Default: none.
    - seed: 0 to 2**64 - 1; makes the draws repeatable. Default: one that the server picks and returns.
    - n: 1 to max_n sequences. Default 1.

    What the output must be; at most one of them:

    - json_schema: JSON that this JSON Schema allows: a mapping, JSON text, or a class with model_json_schema().
    - json_object: True for any JSON object. Default False.
    - regex: a text that the expression matches from end to end.
    - choice: one of these texts, at most max_choices.
    - grammar: a text of this grammar.

    When a sequence ends:

    - max_tokens: >= 1. Default: what the context has left.
    - min_tokens: 0 to max_tokens; no stop counts before. Default 0.
    - stop: texts that end a sequence, at most max_stop_strings of max_stop_string_chars characters. Default: none.
    - stop_token_ids: ids that do, at most max_stop_token_ids. Default: none beside the model's own.
    - ignore_eos: the model's own ends do not count. Default False.
    - include_stop: the stop text is part of the output. Default False.

    What the answer contains:

    - logprobs: 0 to max_logprobs; the chosen token's, and those of so many of the likeliest. Default: none.
    - prompt_logprobs: the same for the tokens of the prompt. Default: none.
    - echo: the prompt stands before each output; not for conversations. Default False.
    - return_token_ids: token ids beside the text. Default False.
    - skip_special_tokens: special tokens add nothing to the text. Default True.
    - max_tokens_per_message: >= 1; most tokens of one message of a stream. Default: no bound of its own.
    - max_delay_ms: milliseconds that a stream may hold tokens back; 0 for never. Default: the server's, by its load.
    """

    request_id: str | None
    model: str | None
    priority: int | None
    tenant: str | None
    timeout_ms: int | None
    truncate_prompt_tokens: int | None
    cache_salt: str | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str] | None
    seed: int | None
    n: int | None
    json_schema: Schema | None
    json_object: bool | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None
    max_tokens: int | None
    min_tokens: int | None
    stop: Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    include_stop: bool | None
    logprobs: int | None
    prompt_logprobs: int | None
    echo: bool | None
    return_token_ids: bool | None
    skip_special_tokens: bool | None
    max_tokens_per_message: int | None
    max_delay_ms: int | None


class ChatOptions(Options, total=False):
    """Options, and those of conversations alone.

    - tools: functions that the model may call, at most max_tools: mappings with "name", "description" and "parameters",
      a JSON Schema as in json_schema; OpenAI's form is read too. Default: none.
    - tool_choice: "auto", "none", "required", or the name of the tool that must be called. Default "auto".
    - parallel_tool_calls: False for at most one call an answer. Default True: at most max_tool_calls.
    """

    tools: Sequence[ToolSpec] | None
    tool_choice: ToolChoice | None
    parallel_tool_calls: bool | None
