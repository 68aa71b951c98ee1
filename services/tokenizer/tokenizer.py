"""Text <-> token ids of one model, built from its files with the `tokenizers` library.

Two encoders share one BPE model: one in which special tokens are spelled in the text (raw prompts), one in which the
same characters are plain text (a client's words). Immutable and safe to use from several threads; encoding releases
the GIL, so a long text can be encoded beside an event loop. Decoding is the byte table: tokens are bytes, bytes are
UTF-8, and what is no UTF-8 shows as U+FFFD.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.models import BPE

from services.model_file import GgufError, read_header
from services.tokenizer import hf_files
from services.tokenizer.chat import ChatTemplate, Message, refuse_surrogates
from services.tokenizer.errors import TemplateError, TextError, TokenizerFileError
from services.tokenizer.pre_tokenizers import Cutting, rule_of
from services.tokenizer.vocabulary import TokenKind, Vocabulary, from_metadata, token_bytes


def load(path: Path) -> "Tokenizer":
    """The tokenizer of a GGUF file or a Hugging Face directory; raises TokenizerFileError, which says what is wrong."""
    if path.is_dir():
        return Tokenizer(*hf_files.read(path))
    try:
        header = read_header(path)
    except GgufError as error:
        raise TokenizerFileError(str(error)) from error
    return Tokenizer(from_metadata(header.metadata))


class Tokenizer:
    """See the file's docstring. vocab_size counts every id, special ones included; prompt_prefix begins raw prompts."""

    def __init__(self, vocabulary: Vocabulary, rule: Cutting | None = None) -> None:
        self.rule = rule = rule or rule_of(vocabulary.pre_tokenizer)
        self.vocab_size = len(vocabulary.texts)
        self.eos_token_ids = vocabulary.eos_token_ids
        self.vocabulary = vocabulary
        self.advised_sampling = vocabulary.sampling
        self._token_bytes = token_bytes(vocabulary)
        self._specials = texts_of(vocabulary, TokenKind.CONTROL, TokenKind.UNKNOWN)
        added = texts_of(vocabulary, TokenKind.USER_DEFINED)
        model = bpe(vocabulary, rule)
        self._parsing = _encoder(model, rule, [*added, *self._specials])
        self._plain = _encoder(model, rule, added)
        self.prompt_prefix = _prompt_prefix(vocabulary, rule)
        self._longest_token = max(map(len, self._token_bytes))
        self._dropped_bytes = _dropped_bytes(self._token_bytes)
        self.chat_template = self._chat_template()

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """The ids of a text by itself; parse_special: a special token's spelling becomes that token.

        Raises TextError for a text with lone surrogates. Bytes that have no token are dropped, as the model's own
        tokenizer does, so a text may have no ids at all.
        """
        refuse_surrogates(text)
        return _encode(self._parsing if parse_special else self._plain, text)

    def encode_prompt(self, text: str) -> list[int]:
        """The ids of a raw prompt: special tokens may be spelled, and the model's BOS, if it wants one, comes first."""
        token_ids = self.encode(text, parse_special=True)
        is_there = token_ids[: len(self.prompt_prefix)] == self.prompt_prefix
        return token_ids if is_there else self.prompt_prefix + token_ids

    def encode_chat(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """The ids of a conversation; only the template's own special tokens are special. Raises TemplateError.

        tools: JSON values in OpenAI's form, for a template that knows tools.
        """
        if self.chat_template is None:
            raise TemplateError("the model has no chat template")
        try:
            pieces = self.chat_template.render(messages, add_generation_prompt, tools)
        except TextError as error:
            raise TemplateError(str(error)) from error
        token_ids: list[int] = []
        for text, is_special in pieces:
            token_ids += [self._specials[text]] if is_special else _encode(self._plain, text)
        return token_ids

    def fewest_tokens(self, text: str) -> int:
        """How many tokens the text has at least, found without encoding it: what is far too long is refused early."""
        refuse_surrogates(text)
        text = self.rule.normalized(text)
        return -(-len(text.encode().translate(None, self._dropped_bytes)) // self._longest_token)

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for; a special token's is its text."""
        return self._token_bytes[token_id]

    def is_special(self, token_id: int) -> bool:
        """Whether a token is no text and is left out of output when special tokens are skipped."""
        return self.vocabulary.is_special(token_id)

    def special_id(self, text: str) -> int | None:
        """The special token that is spelled exactly so."""
        return self._specials.get(text)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool) -> str:
        """The text of ids by themselves; those beyond the vocabulary, of which a model may have rows, add nothing."""
        known = (i for i in token_ids if i < self.vocab_size)
        kept = (i for i in known if not (skip_special_tokens and self.is_special(i)))
        return b"".join(self._token_bytes[i] for i in kept).decode(errors="replace")

    def _chat_template(self) -> ChatTemplate | None:
        source = self.vocabulary.chat_template
        if source is None:
            return None
        return ChatTemplate(source, list(self._specials), self.vocabulary.names)


def _encode(encoder: tokenizers.Tokenizer, text: str) -> list[int]:
    # The batch form alone releases the GIL, and the fast one computes no offsets.
    (encoding,) = encoder.encode_batch_fast([text], add_special_tokens=False)
    token_ids: list[int] = encoding.ids
    return token_ids


def bpe(vocabulary: Vocabulary, rule: Cutting) -> BPE:
    """The model that both encoders share."""
    ids = {text: token_id for token_id, text in enumerate(vocabulary.texts)}
    return BPE(ids, list(vocabulary.merges), **rule.options)


def _encoder(model: BPE, rule: Cutting, added: Iterable[str]) -> tokenizers.Tokenizer:
    """Text to ids; `added` are the texts that become one token wherever they stand."""
    encoder = tokenizers.Tokenizer(model)
    pre_tokenizer, normalizer = rule.pre_tokenizer(), rule.normalizer()
    if pre_tokenizer is not None:
        encoder.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        encoder.normalizer = normalizer
    encoder.add_tokens([rule.added(text) for text in added])
    return encoder


def texts_of(vocabulary: Vocabulary, *kinds: TokenKind) -> dict[str, int]:
    """The tokens of some kinds, each with its id."""
    pairs = zip(vocabulary.texts, vocabulary.kinds, strict=True)
    return {text: token_id for token_id, (text, kind) in enumerate(pairs) if kind in kinds}


def _prompt_prefix(vocabulary: Vocabulary, rule: Cutting) -> list[int]:
    adds_bos = rule.adds_bos if vocabulary.add_bos is None else vocabulary.add_bos
    return [vocabulary.bos_token_id] if adds_bos and vocabulary.bos_token_id is not None else []


def _dropped_bytes(table: Sequence[bytes]) -> bytes:
    """The byte values that no token stands for."""
    return bytes(set(range(0x100)).difference(*table))
