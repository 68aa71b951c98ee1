"""Constraints as grammars: what they allow, what does not compile, and what is too much."""

import json
import random
import re
from typing import Any

import numpy as np
import pytest

from services.executor.batch import I32
from services.executor.grammar import Checker, Compiler, Grammar, GrammarError, Matcher, Spelling
from services.executor.masks import num_words
from services.runtime.settings import ExecutorSettings
from services.wire.messages import Constraint, ConstraintKind
from tests.unit.executor.toy_vocabulary import BYTES_WITHOUT_A_TOKEN, ENDS, SIZE, ToyVocabulary

VOCABULARY = ToyVocabulary()
HARD = Constraint(ConstraintKind.REGEX, r"(\w+\s?){50,200}")  # its lexer has no end of states


def compiler(**settings: Any) -> Compiler:
    return Compiler(ExecutorSettings(**settings), lambda: VOCABULARY)


COMPILE = compiler()


def schema(value: Any) -> Constraint:
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(value))


def allowed(bits: I32) -> list[int]:
    unpacked = np.unpackbits(bits.view(np.uint8), bitorder="little")
    assert not unpacked[SIZE:].any()
    return np.flatnonzero(unpacked).tolist()


def follow(matcher: Matcher, tokens: list[int]) -> list[int]:
    """What may follow; tokens: the new ones."""
    bits = np.zeros(num_words(SIZE), np.int32)
    assert matcher.follow(tokens, bits) == ""
    return allowed(bits)


def walk(grammar: Grammar, seed: int, prefer: bytes = b"", most: int = 200) -> str:
    """A text that takes any way through the grammar, the preferred token wherever it may."""
    chance, matcher, tokens = random.Random(seed), grammar.start(), list[int]()
    following = follow(matcher, [])
    while len(tokens) < most:
        preferred = [token for token in following if prefer and VOCABULARY.token_bytes(token) == prefer]
        token = chance.choice(preferred or following)
        if token in ENDS:
            break
        tokens.append(token)
        following = follow(matcher, [token])
    return VOCABULARY.text(tokens)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("constraint", "is_right"),
    [
        (Constraint(ConstraintKind.REGEX, "a{2,5}(b|é)"), lambda text: re.fullmatch("a{2,5}(b|é)", text)),
        (
            Constraint(ConstraintKind.CHOICE, json.dumps(["yes", 'a "b"\n', "日本", "aab"])),
            '["yes","日本"]'.__contains__,
        ),
        (Constraint(ConstraintKind.GRAMMAR, 'start: "x" (start | "y")'), lambda text: re.fullmatch("x+y", text)),
        (Constraint(ConstraintKind.GRAMMAR, 'root ::= "x" root | "y"'), lambda text: re.fullmatch("x*y", text)),
        (schema({"enum": [1, "two", None]}), lambda text: json.loads(text) in (1, "two", None)),
        (schema({"type": "boolean"}), lambda text: isinstance(json.loads(text), bool)),
    ],
)
def test_every_way_through_a_grammar_is_right(constraint: Constraint, is_right: Any, seed: int) -> None:
    text = walk(COMPILE(constraint), seed)
    if constraint.kind == ConstraintKind.CHOICE:
        assert text in json.loads(constraint.source)
    else:
        assert is_right(text), text


def test_any_object_and_any_value() -> None:
    assert isinstance(json.loads(walk(COMPILE(Constraint(ConstraintKind.JSON_OBJECT, "")), 3, prefer=b"}")), dict)
    matcher = COMPILE(Constraint(ConstraintKind.JSON_SCHEMA, " true ")).start()
    following = {VOCABULARY.token_bytes(token)[:1] for token in follow(matcher, [])}
    assert {b"{", b"[", b'"', b"t", b"f", b"n", b"-", b"0"} <= following


def test_whitespace_is_one_blank_after_a_separator_and_cannot_go_on() -> None:
    flags = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}
    constraint = schema(
        {"type": "object", "properties": {"a": flags}, "required": ["a"], "additionalProperties": False}
    )
    texts = {walk(COMPILE(constraint), 1, prefer=blank) for blank in (b" ", b", ", b"\n", b"\t", b"")}
    shape = re.compile(r'\{"a": ?\[(true|false), ?(true|false)\]\}')
    assert all(shape.fullmatch(text) for text in texts)
    assert any(", " in text for text in texts), "the preferred blank was never taken"


def test_a_schema_cannot_loosen_the_rules() -> None:
    loose = {"x-guidance": {"whitespace_flexible": True, "lenient": True}, "type": "array", "uniqueItems": True}
    with pytest.raises(GrammarError, match="uniqueItems"):
        COMPILE(schema(loose))
    blank = {"x-guidance": {"whitespace_flexible": True, "whitespace_pattern": " *"}, "type": "array", "maxItems": 0}
    assert walk(COMPILE(schema(blank)), 1, prefer=b" ") == "[]"


def test_a_complete_text_may_end_and_one_that_could_go_on_need_not() -> None:
    matcher = COMPILE(Constraint(ConstraintKind.REGEX, "a{1,2}")).start()
    assert not set(ENDS) & set(follow(matcher, []))
    assert set(follow(matcher, [ord("a")])) == {ord("a"), *ENDS}
    assert set(follow(matcher, [ord("a")])) == set(ENDS)
    assert set(follow(matcher, [ENDS[1]])) == set(ENDS)
    assert set(follow(matcher, [ord("z")])) == set(ENDS), "what is drawn after the end is never looked at"


def test_special_tokens_are_never_text() -> None:
    texts = COMPILE(Constraint(ConstraintKind.REGEX, "(?s:.*)")).start()
    assert set(follow(texts, [])) & {*ENDS} == set(ENDS)  # the text may be empty, so it may end
    marked = COMPILE(Constraint(ConstraintKind.REGEX, "<end>x")).start()
    assert follow(marked, []) == [ord("<")]


@pytest.mark.parametrize(
    ("constraint", "why"),
    [
        (Constraint(ConstraintKind.JSON_SCHEMA, "{nope"), "key must be a string"),
        (Constraint(ConstraintKind.JSON_SCHEMA, "false"), "object schema"),
        (Constraint(ConstraintKind.JSON_SCHEMA, "[1]"), "object schema"),
        (Constraint(ConstraintKind.JSON_SCHEMA, '{"a":' * 2000), "recursion limit"),
        (schema({"type": "objekt"}), "objekt"),
        (schema({"not": {"type": "string"}}), "not"),
        (schema({"type": "integer", "minimum": 5, "maximum": 3}), "greater than maximum"),
        (schema({"$ref": "http://localhost:1/x"}), "retriev"),
        (Constraint(ConstraintKind.REGEX, "(a"), "unclosed group"),
        (Constraint(ConstraintKind.REGEX, "(?=a)b"), "look-around"),
        (Constraint(ConstraintKind.GRAMMAR, "start: other"), "other"),
        (Constraint(ConstraintKind.GRAMMAR, "root ::= ("), "GBNF"),
    ],
)
def test_what_does_not_compile_says_why(constraint: Constraint, why: str) -> None:
    for judge in (COMPILE, Checker(ExecutorSettings())):
        with pytest.raises(GrammarError, match=why):
            judge(constraint)


@pytest.mark.parametrize(
    ("bound", "constraint"),
    [
        ({"constraint_size": 200}, schema({"properties": {f"p{i}": {"type": "integer"} for i in range(200)}})),
        ({"constraint_compile_work": 100}, schema({"type": "string", "pattern": "^(ab|cd|ef){1,40}$"})),
    ],
)
def test_a_constraint_beyond_a_bound_does_not_compile(bound: dict[str, int], constraint: Constraint) -> None:
    COMPILE(constraint)
    with pytest.raises(GrammarError):
        compiler(**bound)(constraint)


@pytest.mark.parametrize("bound", [{"constraint_mask_work": 300}, {"constraint_states": 20}])
def test_a_mask_beyond_a_bound_is_no_dead_end_and_tells_no_text(bound: dict[str, int]) -> None:
    matcher, bits = compiler(**bound)(HARD).start(), np.zeros(num_words(SIZE), np.int32)
    whys = [matcher.follow([ord(letter)], bits) for letter in "abcdefghij"]
    why = next(why for why in whys if why)
    assert not matcher.is_dead_end and "abc" not in why and "\n" not in why


def test_a_text_that_cannot_be_spelled_is_a_dead_end_and_nothing_wrong_is_allowed() -> None:
    missing, other = map(chr, BYTES_WITHOUT_A_TOKEN)
    matcher, bits = (
        COMPILE(Constraint(ConstraintKind.REGEX, f"x[{missing}{other}]")).start(),
        np.zeros(num_words(SIZE), np.int32),
    )
    assert matcher.follow([ord("x")], bits) == "no token may follow" and matcher.is_dead_end
    forced = COMPILE(Constraint(ConstraintKind.REGEX, f"x{missing}y")).start()
    assert forced.follow([], bits) != ""


def test_a_token_that_does_not_fit_is_refused() -> None:
    matcher, bits = COMPILE(Constraint(ConstraintKind.REGEX, "ab")).start(), np.zeros(num_words(SIZE), np.int32)
    assert matcher.follow([ord("b")], bits) != ""


def test_forced_text_is_spelled_as_the_model_spells_it() -> None:
    matcher = COMPILE(Constraint(ConstraintKind.REGEX, "aaaaa")).start()
    assert follow(matcher, []) == VOCABULARY.encode("aaa", parse_special=False)
    spelling = Spelling(VOCABULARY)
    spelling.tokenizer()
    assert spelling(b"aaaab") == VOCABULARY.encode("aaaab", parse_special=False)
    assert spelling(f"a{chr(BYTES_WITHOUT_A_TOKEN[0])}") == []


class Reading(ToyVocabulary):
    """Notes how long the texts are that it is asked to cut."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def encode(self, text: str, parse_special: bool) -> list[int]:
        self.lengths.append(len(text))
        return super().encode(text, parse_special)


@pytest.mark.parametrize("unit", ["aab 12", "aaa", "é"])
def test_a_long_forced_text_is_looked_at_piece_by_piece_and_spelled_as_a_whole(unit: str) -> None:
    vocabulary = Reading()
    long = unit * (400 // len(unit))
    matcher = Compiler(ExecutorSettings(), lambda: vocabulary)(schema({"const": long})).start()
    tokens, following = list[int](), follow(matcher, [])
    while following[0] not in ENDS:
        assert len(following) == 1
        tokens.append(following[0])
        following = follow(matcher, tokens[-1:])
    assert tokens == vocabulary.encode(f'"{long}"', parse_special=False)
    assert max(vocabulary.lengths[:-1]) <= 512


def test_what_can_have_no_first_mask_does_not_compile() -> None:
    with pytest.raises(GrammarError, match="too many states"):
        compiler(constraint_states=3)(Constraint(ConstraintKind.REGEX, "(ab|cd)+[0-9]"))


@pytest.mark.parametrize(
    "control",
    [*map(chr, {*range(0x20)}.difference(BYTES_WITHOUT_A_TOKEN)), "\x7f", "\x85", "\u2028", "\ufeff", "\\", '"', "/"],
)
def test_a_choice_may_hold_any_character(control: str) -> None:
    text = f"a{control}x"
    assert walk(COMPILE(Constraint(ConstraintKind.CHOICE, json.dumps([text, text + "y"]))), 0).startswith(text)


def chain(link: str, last: str, num: int, separator: str) -> str:
    """Definitions of which each refers to the next."""
    return separator.join([link.format(i, i + 1) for i in range(num)] + [last.format(num)])


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint(ConstraintKind.GRAMMAR, "start: r0\n" + chain("r{}:r{}", 'r{}:"a"', 5000, "\n")),
        Constraint(ConstraintKind.GRAMMAR, "start: R0\n" + chain("R{}:R{}", 'R{}:"a"', 5000, "\n")),
        Constraint(
            ConstraintKind.JSON_SCHEMA,
            '{"$ref":"#/$defs/0","$defs":{'
            + chain(
                '"{}":' + '{{"allOf":[' * 20 + '{{"$ref":"#/$defs/{}"}}' + "]}}" * 20, '"{}":{{"const":1}}', 200, ","
            )
            + "}}",
        ),
    ],
    ids=["rules", "terminals", "schema"],
)
def test_what_is_as_deep_as_its_source_is_long_compiles(constraint: Constraint) -> None:
    assert len(constraint.source) > 48 * 1024
    Checker(ExecutorSettings())(constraint)
    grammar = COMPILE(constraint)
    only = ord("1") if constraint.kind == ConstraintKind.JSON_SCHEMA else ord("a")
    assert follow(grammar.start(), []) == follow(grammar.start_alone(), []) == [only]


def test_matchers_of_one_grammar_go_their_own_ways() -> None:
    grammar = COMPILE(Constraint(ConstraintKind.REGEX, "a*b|c"))
    first, second = grammar.start(), grammar.start()
    follow(first, [ord("a")])
    assert ord("c") in follow(second, []) and ord("c") not in follow(first, [])
    assert follow(grammar.start_alone(), [ord("a")]) == follow(first, [])


class Endless(ToyVocabulary):
    """A model that has no token for the end of a text."""

    eos_token_ids = ()


def test_a_model_without_an_end_token_follows_no_constraint_and_says_why() -> None:
    compile_endless = Compiler(ExecutorSettings(), Endless)
    for _ in range(2):
        with pytest.raises(GrammarError, match="the model has no end token"):
            compile_endless(Constraint(ConstraintKind.CHOICE, '["a", "b"]'))
