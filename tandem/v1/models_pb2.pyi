from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "context_length", "vocab_size", "eos_token_ids", "backend", "dtype", "num_parameters", "kv_bytes_per_token", "block_size", "num_blocks", "kv_capacity_tokens", "max_num_seqs", "has_chat_template", "limits")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    name: str
    context_length: int
    vocab_size: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    backend: str
    dtype: str
    num_parameters: int
    kv_bytes_per_token: int
    block_size: int
    num_blocks: int
    kv_capacity_tokens: int
    max_num_seqs: int
    has_chat_template: bool
    limits: Limits
    def __init__(self, name: _Optional[str] = ..., context_length: _Optional[int] = ..., vocab_size: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., backend: _Optional[str] = ..., dtype: _Optional[str] = ..., num_parameters: _Optional[int] = ..., kv_bytes_per_token: _Optional[int] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., kv_capacity_tokens: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., has_chat_template: _Optional[bool] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_message_bytes", "max_prompt_bytes", "max_stop_strings", "max_stop_string_chars", "max_stop_token_ids", "max_logprobs", "max_n", "max_chat_messages", "max_request_id_chars", "max_tenant_chars", "max_logit_bias", "max_allowed_token_ids", "max_bad_words", "max_bad_word_chars", "max_constraint_bytes", "max_choices", "max_tools", "max_tool_bytes", "max_tool_calls", "max_cache_salt_chars")
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_STRING_CHARS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MAX_N_FIELD_NUMBER: _ClassVar[int]
    MAX_CHAT_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_ID_CHARS_FIELD_NUMBER: _ClassVar[int]
    MAX_TENANT_CHARS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    MAX_ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_BAD_WORD_CHARS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONSTRAINT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_CHOICES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOOLS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOOL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    MAX_CACHE_SALT_CHARS_FIELD_NUMBER: _ClassVar[int]
    max_message_bytes: int
    max_prompt_bytes: int
    max_stop_strings: int
    max_stop_string_chars: int
    max_stop_token_ids: int
    max_logprobs: int
    max_n: int
    max_chat_messages: int
    max_request_id_chars: int
    max_tenant_chars: int
    max_logit_bias: int
    max_allowed_token_ids: int
    max_bad_words: int
    max_bad_word_chars: int
    max_constraint_bytes: int
    max_choices: int
    max_tools: int
    max_tool_bytes: int
    max_tool_calls: int
    max_cache_salt_chars: int
    def __init__(self, max_message_bytes: _Optional[int] = ..., max_prompt_bytes: _Optional[int] = ..., max_stop_strings: _Optional[int] = ..., max_stop_string_chars: _Optional[int] = ..., max_stop_token_ids: _Optional[int] = ..., max_logprobs: _Optional[int] = ..., max_n: _Optional[int] = ..., max_chat_messages: _Optional[int] = ..., max_request_id_chars: _Optional[int] = ..., max_tenant_chars: _Optional[int] = ..., max_logit_bias: _Optional[int] = ..., max_allowed_token_ids: _Optional[int] = ..., max_bad_words: _Optional[int] = ..., max_bad_word_chars: _Optional[int] = ..., max_constraint_bytes: _Optional[int] = ..., max_choices: _Optional[int] = ..., max_tools: _Optional[int] = ..., max_tool_bytes: _Optional[int] = ..., max_tool_calls: _Optional[int] = ..., max_cache_salt_chars: _Optional[int] = ...) -> None: ...
