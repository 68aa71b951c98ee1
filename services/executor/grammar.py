"""Constraints as llguidance compiles them: the one file that knows the library.

A Constraint becomes a Grammar, a Grammar starts a Matcher for each text, and a Matcher says which tokens may follow.
Nothing here keeps a thread or a cache; every call that takes time releases the GIL while it does. A matcher shares the
lexer of its grammar, whose states are worked out once for all texts; one that reached the lexer's bounds is worn, and
what goes on after that shares nothing. Where bytes are forced, the mask allows the model's own spelling of them alone.
Compiling recurses as deep as definitions refer to one another, and so has a stack of its own.
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Protocol

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, grammar_from

from services.executor.batch import I32
from services.executor.depth import deeply
from services.executor.masks import num_words
from services.runtime.settings import ExecutorSettings
from services.wire.messages import Constraint, ConstraintKind

_ANY_OBJECT = '{"type": "object"}'
_FORESIGHT = 128  # characters of forced text that are looked at, or more if they are fewer tokens than
_FORESIGHT_TOKENS = 16
_SPELLINGS = 4096  # forced texts whose tokens are kept: keys, quotes and brackets come again in each text of a grammar
_DEAD_END = "NoExtensionBias"  # what the library says of it
_WITHHELD = "<non-verbose/>"  # what it writes in place of the text and the state


class GrammarError(ValueError):
    """A constraint that cannot be compiled, or not within the limits; the text is for its user."""


class Vocabulary(Protocol):
    """What a tokenizer must tell: services/tokenizer's does."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def is_special(self, token_id: int) -> bool: ...
    def encode(self, text: str, parse_special: bool) -> list[int]: ...


class Matcher:
    """How far one text has come. is_dead_end: nothing may follow; otherwise, where it failed, it was too much work."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self.is_dead_end = False

    @property
    def inner(self) -> LLMatcher:
        """The library's own, for Masker."""
        return self._matcher

    def take_in(self, tokens: Sequence[int]) -> None:
        """Go on by these tokens."""
        # What is drawn after the end of a text, by steps that were planned before it was known, is thrown away.
        if self._matcher.is_error() or not self._matcher.is_stopped():
            self._matcher.consume_tokens(list(tokens))

    def why(self) -> str:
        """After the mask was worked out: "", or why none is known."""
        if not self._matcher.is_error():
            return ""
        error = _readable(self._matcher.get_error())
        self.is_dead_end = error == _DEAD_END
        return "no token may follow" if self.is_dead_end else error

    def follow(self, tokens: Sequence[int], bits: I32) -> str:
        """Take in tokens, then set the bits [words] of those that may follow. Returns what `why` says."""
        self.take_in(tokens)
        if not self._matcher.is_error():
            self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        return self.why()


class Masker:
    """Works out the masks of several texts at once, by threads of the library's own and without the GIL.

    One by one, each would give the GIL away and ask for it back, in turns with the thread that runs the steps.
    """

    def __init__(self, num_threads: int) -> None:
        self._executor = LLExecutor(num_threads)

    def fill(self, matchers: Sequence[Matcher], bits: I32) -> None:
        """Set the bits [matchers, words] of the tokens that may follow; each matcher then says `why` if none may."""
        inner = [(matcher.inner, index) for index, matcher in enumerate(matchers)]
        self._executor.unsafe_compute_mask_ptr(inner, bits.ctypes.data, bits.strides[0], len(bits))


class Grammar:
    """A compiled constraint. vocab_size: how many tokens its masks tell of; a model may have rows for more, which are
    never allowed. is_worn: its lexer is at its bounds, whatever the text."""

    def __init__(self, compile_anew: Callable[[], LLMatcher], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._compile_anew = compile_anew
        self._first = compile_anew()
        self.is_worn = False
        if self._first.is_error():
            raise GrammarError(_readable(self._first.get_error()))
        # The first mask is often the dearest, and the lexer that all texts share keeps what was worked out for it.
        beginning = self.start()
        why = beginning.follow([], np.zeros(num_words(vocab_size), np.int32))
        if why and not beginning.is_dead_end:
            raise GrammarError(why)

    def start(self) -> Matcher:
        """A matcher at the beginning of a text, on the shared lexer."""
        return Matcher(self._first.deep_copy())

    def start_alone(self) -> Matcher:
        """The same, compiled anew, so that it takes the time of a compilation and shares nothing."""
        return Matcher(self._compile_anew())


class Compiler:
    """Compiles within the limits of the settings. load: the model's vocabulary, read at once in a thread of its own, so
    that it is there before anybody needs it and no step runs beside it."""

    def __init__(self, settings: ExecutorSettings, load: Callable[[], Vocabulary]) -> None:
        self._limits = limits_from(settings)
        reader = ThreadPoolExecutor(1, thread_name_prefix="vocabulary")
        self._tokenizer = reader.submit(lambda: Spelling(load()).tokenizer())
        reader.shutdown(wait=False)

    def __call__(self, constraint: Constraint) -> Grammar:
        """The grammar of a constraint; raises GrammarError."""
        text = grammar_text(constraint)
        tokenizer = self._tokenizer.result()

        def compile_anew() -> LLMatcher:
            return deeply(lambda: LLMatcher(tokenizer, text, log_level=0, limits=self._limits), len(text.encode()))

        return Grammar(compile_anew, tokenizer.vocab_size)


class Checker:
    """In a Compiler's place where tokens are given and nothing is matched: constraints are judged all the same."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self._limits = limits_from(settings)

    def __call__(self, constraint: Constraint) -> None:
        """Raises GrammarError."""
        text = grammar_text(constraint)
        error = deeply(lambda: LLMatcher.validate_grammar(text, limits=self._limits), len(text.encode()))
        if error:
            raise GrammarError(_readable(error))


class Spelling:
    """A vocabulary as llguidance wants it, and how text that is forced is cut into tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        ids = range(vocabulary.vocab_size)
        self.tokens = [vocabulary.token_bytes(token_id) for token_id in ids]
        self.special_token_ids = [token_id for token_id in ids if vocabulary.is_special(token_id)]
        if not vocabulary.eos_token_ids:
            raise GrammarError("the model has no end token, so nothing could end a text that is complete")
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.bos_token_id = None
        self._tokenizer: LLTokenizer | None = None
        self._spelled = lru_cache(_SPELLINGS)(self._spell)

    def tokenizer(self) -> LLTokenizer:
        """What grammars are compiled with; any of the model's ends may follow a text that is complete."""
        ends = list(self._vocabulary.eos_token_ids)
        slices = LLTokenizer.json_slices()
        self._tokenizer = LLTokenizer(TokenizerWrapper(self), eos_token=ends, slices=slices)
        return self._tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        """The tokens that stand for exactly these bytes, or for the beginning of a long text: the model's own choice
        first; none if there are none, for bytes may have no token, and a tokenizer that normalizes changes others.

        The library asks anew for each token of a text that is forced, and takes the first.
        """
        text = text if isinstance(text, str) else text.decode()
        token_ids: list[int] = []
        seen = ""
        while len(token_ids) < _FORESIGHT_TOKENS and seen != text:
            seen = text[: max(_FORESIGHT, 4 * len(seen))]
            token_ids = list(self._spelled(seen))
            if not token_ids:
                return []
        # The last ones may be cut otherwise where the text goes on.
        return token_ids if seen == text else token_ids[:-2]

    def _spell(self, text: str) -> tuple[int, ...]:
        raw = text.encode()
        token_ids = self._vocabulary.encode(text, parse_special=False)
        if self._bytes_of(token_ids) != raw and self._tokenizer is not None:
            token_ids = self._tokenizer.greedy_tokenize(text)
        return tuple(token_ids) if self._bytes_of(token_ids) == raw else ()

    def _bytes_of(self, token_ids: list[int]) -> bytes:
        return b"".join(self.tokens[token_id] for token_id in token_ids)


def limits_from(settings: ExecutorSettings) -> LLParserLimits:
    """The bounds on compiling and on masks."""
    return LLParserLimits(
        initial_lexer_fuel=settings.constraint_compile_work,
        step_lexer_fuel=settings.constraint_mask_work,
        max_lexer_states=settings.constraint_states,
        max_grammar_size=settings.constraint_size,
        verbose_errors=False,
    )


def grammar_text(constraint: Constraint) -> str:
    """The constraint in the library's own form; raises GrammarError for what cannot be read."""
    try:
        match constraint.kind:
            case ConstraintKind.JSON_SCHEMA:
                return _of_schema(constraint.source)
            case ConstraintKind.JSON_OBJECT:
                return _of_schema(_ANY_OBJECT)
            case ConstraintKind.REGEX:
                return LLMatcher.grammar_from_regex(constraint.source)
            case ConstraintKind.CHOICE:
                texts = json.loads(constraint.source)
                return "start: " + " | ".join(_quoted(text) for text in texts)
            case ConstraintKind.GRAMMAR:
                return grammar_from("grammar", constraint.source)
    except ValueError as error:
        raise GrammarError(str(error)) from error


def _quoted(text: str) -> str:
    """A text as the library's grammars write it, which is JSON's way, and takes no control character as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _of_schema(source: str) -> str:
    """True allows every value, as the empty schema does.

    One blank may follow a comma or a colon, and no whitespace stands anywhere else: no text goes on for ever with it.
    """
    schema = "{}" if source.strip() == "true" else source
    return LLMatcher.grammar_from_json_schema(
        schema,
        overrides={
            "item_separator": ", ?",
            "key_separator": ": ?",
            "whitespace_flexible": False,
            "whitespace_pattern": None,
            "coerce_one_of": False,
            "lenient": False,
        },
    )


def _readable(error: str) -> str:
    return error.replace(_WITHHELD, "").strip()
