"""The tokenizer as the files of a Hugging Face model directory, for programs that read no GGUF.

They say the same: `tokenizer.json` makes the ids that encode_prompt makes, `tokenizer_config.json` carries the chat
template, and `config.json` names the model's family, which readers look for before anything else. Same tokenizer, same
bytes. Knows the fields that readers of the field look at; knows no archive and no network.
"""

import json
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, processors

from services.tokenizer.hf_files import FileRule
from services.tokenizer.tokenizer import Tokenizer, bpe, texts_of
from services.tokenizer.vocabulary import TokenKind, Vocabulary

# A model file's family, and the class that reads it in the field.
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def architectures(model_type: str) -> list[str]:
    """The class names of a family; none for one that is not known here."""
    return [_ARCHITECTURES[model_type]] if model_type in _ARCHITECTURES else []


def files(tokenizer: Tokenizer, context_length: int) -> Mapping[str, bytes]:
    """Each file's content by its name."""
    vocabulary = tokenizer.vocabulary
    configs = {
        "tokenizer_config.json": _tokenizer_config(vocabulary, context_length),
        "special_tokens_map.json": _named_tokens(vocabulary),
        "config.json": _config(vocabulary, context_length),
        "generation_config.json": {"eos_token_id": list(vocabulary.eos_token_ids)},
    }
    contents = {name: json.dumps(config, ensure_ascii=False, indent=1).encode() for name, config in configs.items()}
    rule = tokenizer.rule
    encoder = rule.source if isinstance(rule, FileRule) else _encoder(tokenizer).to_str().encode()
    return {"tokenizer.json": encoder, **contents}


def _encoder(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """One encoder that parses special tokens and puts the model's BOS before a text, and decodes what it encodes."""
    vocabulary, rule = tokenizer.vocabulary, tokenizer.rule
    encoder = tokenizers.Tokenizer(bpe(vocabulary, rule))
    pre_tokenizer, normalizer = rule.pre_tokenizer(), rule.normalizer()
    if pre_tokenizer is not None:
        encoder.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        encoder.normalizer = normalizer
    encoder.decoder = decoders.ByteLevel()
    encoder.add_tokens([AddedToken(text, normalized=False) for text in texts_of(vocabulary, TokenKind.USER_DEFINED)])
    specials = texts_of(vocabulary, TokenKind.CONTROL, TokenKind.UNKNOWN)
    encoder.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in specials])
    if tokenizer.prompt_prefix:
        bos = [(vocabulary.texts[token_id], token_id) for token_id in tokenizer.prompt_prefix]
        single = " ".join([*(text for text, _ in bos), "$A"])
        encoder.post_processor = processors.TemplateProcessing(single=single, special_tokens=bos)
    return encoder


def _tokenizer_config(vocabulary: Vocabulary, context_length: int) -> dict[str, Any]:
    special = texts_of(vocabulary, TokenKind.CONTROL, TokenKind.UNKNOWN)
    plain = texts_of(vocabulary, TokenKind.USER_DEFINED)
    added = sorted((token_id, text) for text, token_id in {**special, **plain}.items())
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(token_id): {"content": text, "normalized": False, "special": text in special}
            for token_id, text in added
        },
        **_named_tokens(vocabulary),
    }
    if vocabulary.chat_template is not None:
        config["chat_template"] = vocabulary.chat_template
    return config


def _named_tokens(vocabulary: Vocabulary) -> dict[str, str]:
    return {name: text for name, text in vocabulary.names.items() if text}


def _config(vocabulary: Vocabulary, context_length: int) -> dict[str, Any]:
    return {
        "model_type": vocabulary.architecture,
        "architectures": architectures(vocabulary.architecture),
        "vocab_size": len(vocabulary.texts),
        "max_position_embeddings": context_length,
        "bos_token_id": vocabulary.bos_token_id,
        "eos_token_id": list(vocabulary.eos_token_ids),
    }
