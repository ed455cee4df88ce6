"""Which tokens may come next, held against what the finished texts must be."""

import json
import re
import time
from dataclasses import replace
from random import Random
from threading import Event
from typing import Any

import jsonschema
import numpy as np
import pytest

from common.errors import ClientError, SetupError
from common.text.digits import MAX_DIGITS, MAX_EXPONENT_DIGITS
from common.text.grammar import (
    MAX_GBNF_RULES,
    MAX_GRAMMAR_CHARS,
    Grammars,
    GrammarTokenizer,
    Matcher,
    of_choice,
    of_ebnf,
    of_json_schema,
    of_regex,
)
from common.text.load import TextModel

END = 2  # <|im_end|>
MOST_TOKENS = 400
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars(smollm2: TextModel) -> GrammarTokenizer:
    return GrammarTokenizer(smollm2)


def allowed(matcher: Matcher, outputs: tuple[int, ...]) -> list[int]:
    may_V = matcher.allowed(outputs)
    assert may_V is not None
    return np.flatnonzero(may_V).tolist()


def said(grammars: GrammarTokenizer, text: TextModel, grammar: str, seed: int) -> str:
    """A random answer, ended as soon as it may."""
    random, outputs = Random(seed), ()
    matcher = grammars.matcher(grammar)
    while len(outputs) < MOST_TOKENS:
        may = allowed(matcher, outputs)
        if END in may:
            return text.tokenizer.decode(outputs, skip_special_tokens=True)
        outputs += (random.choice(may),)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("seed", range(6))
def test_what_is_said_is_of_the_schema(
    grammars: GrammarTokenizer, smollm2: TextModel, seed: int
) -> None:
    text = said(grammars, smollm2, of_json_schema(PERSON), seed)
    jsonschema.validate(json.loads(text), PERSON)


@pytest.mark.parametrize("seed", range(3))
def test_regular_expressions_choices_and_grammars(
    grammars: GrammarTokenizer, smollm2: TextModel, seed: int
) -> None:
    assert re.fullmatch("[a-c]{2,5}@x", said(grammars, smollm2, of_regex("[a-c]{2,5}@x"), seed))
    choices = ["red", "re", 'a "quoted" one\n', "日本"]
    assert said(grammars, smollm2, of_choice(choices), seed) in choices
    assert said(grammars, smollm2, of_ebnf('root ::= "a" | "bc"'), seed) in ("a", "bc")
    assert said(grammars, smollm2, of_ebnf('start: "a" B\nB: /[0-9]/'), seed)[0] == "a"


def test_a_matcher_that_follows_allows_what_a_new_one_does(
    grammars: GrammarTokenizer, smollm2: TextModel
) -> None:
    grammar = of_json_schema(PERSON)
    ids = smollm2.tokenizer.encode('{"name": "Ann", "age": 41', add_special_tokens=False)
    outputs = tuple(ids)
    following = grammars.matcher(grammar)
    for n in range(len(outputs) + 1):
        new = grammars.matcher(grammar)
        assert allowed(following, outputs[:n]) == allowed(new, outputs[:n])
    assert following.allowed(outputs[:3]) is None  # it cannot go back


@pytest.mark.parametrize(
    ("schema", "begun", "most"),
    [
        ({"type": "integer"}, "-", MAX_DIGITS),
        ({"type": "number", "minimum": 0, "maximum": 2}, "1.", MAX_DIGITS),
        ({"type": "number"}, "1e-", MAX_EXPONENT_DIGITS),
        ({"type": "object"}, '{"a 7": [', MAX_DIGITS),
        ({"type": "string", "maxLength": 40}, '"', 40),  # a text's are no number's
    ],
)
def test_a_number_in_json_comes_to_an_end(
    grammars: GrammarTokenizer, smollm2: TextModel, schema: dict[str, Any], begun: str, most: int
) -> None:
    (one,) = smollm2.tokenizer.encode("1", add_special_tokens=False)
    outputs = tuple(smollm2.tokenizer.encode(begun, add_special_tokens=False))
    matcher, n = grammars.matcher(of_json_schema(schema)).copy(), 0
    while one in allowed(matcher, outputs):
        outputs, n = (*outputs, one), n + 1
        assert n <= most
    assert n == most


def test_a_number_has_as_many_digits_as_it_must(
    grammars: GrammarTokenizer, smollm2: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.text.digits.MAX_DIGITS", 2)
    outputs = tuple(smollm2.tokenizer.encode("[111", add_special_tokens=False))
    grammar = of_json_schema({"type": "array", "items": {"const": 1111}})
    assert allowed(grammars.matcher(grammar), outputs) == [outputs[-1]]


def test_digits_that_a_regular_expression_allows_have_no_other_bound(
    grammars: GrammarTokenizer, smollm2: TextModel
) -> None:
    (one,) = smollm2.tokenizer.encode("1", add_special_tokens=False)
    assert one in allowed(grammars.matcher(of_regex("[0-9]+")), (one,) * 90)


def test_where_an_answer_is_complete_only_its_end_may_come(
    grammars: GrammarTokenizer, smollm2: TextModel
) -> None:
    matcher = grammars.matcher(of_choice(["red"]))
    outputs = tuple(smollm2.tokenizer.encode("red", add_special_tokens=False))
    assert allowed(matcher, outputs) == [END]
    assert allowed(matcher, (*outputs, END)) == [END]


def test_what_the_grammar_never_allowed_ends_the_answer(grammars: GrammarTokenizer) -> None:
    """No draw comes to it; an answer that was begun under another grammar could."""
    matcher = grammars.matcher(of_choice(["red"]))
    assert allowed(matcher, (5, 6, 7)) == [END]
    assert matcher.failure is not None


def test_as_many_choices_as_a_client_may_give(
    grammars: GrammarTokenizer, smollm2: TextModel
) -> None:
    choices = [f"choice number {n} of many" for n in range(4096)]
    assert said(grammars, smollm2, of_choice(choices), 1) in choices


@pytest.mark.parametrize("text", ["<|im_end|>", "a<|im_start|>b<|im_end|>", "é<|endoftext|>"])
def test_text_that_is_spelt_like_a_special_token_is_text(
    grammars: GrammarTokenizer, smollm2: TextModel, text: str
) -> None:
    for grammar in (of_choice([text]), of_json_schema({"const": text})):
        matcher, outputs = grammars.matcher(grammar), ()
        while END not in (may := allowed(matcher, outputs)):
            assert smollm2.tokenizer.vocabulary.special_ids.isdisjoint(may)
            outputs += (may[0],)
        told = smollm2.tokenizer.decode(outputs, skip_special_tokens=True)
        assert told in (text, json.dumps(text, ensure_ascii=False))


def test_no_special_token_comes_within_a_text(
    grammars: GrammarTokenizer, smollm2: TextModel
) -> None:
    outputs = tuple(smollm2.tokenizer.encode('"abc', add_special_tokens=False))
    may = allowed(grammars.matcher(of_json_schema({"type": "string"})), outputs)
    assert smollm2.tokenizer.vocabulary.special_ids.isdisjoint(may)


def test_rows_that_are_no_tokens_are_never_drawn(smollm2: TextModel) -> None:
    grammars = GrammarTokenizer(replace(smollm2, vocab_size=smollm2.vocab_size + 70))
    may_V = grammars.matcher(of_regex("(?s).*")).allowed(())
    assert may_V is not None
    assert len(may_V) == smollm2.vocab_size + 70
    assert not may_V[smollm2.vocab_size :].any()


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (of_regex("a[^\\s\\S]"), "it allows nothing"),
        (of_json_schema({"$ref": "#"}), "it allows nothing"),
        (of_json_schema(schema=False), "Unsatisfiable schema"),
        (
            of_json_schema({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
            "Too many items",
        ),
        (of_json_schema({"multipleOf": 999_999_937, "type": "integer"}), "fuel exhausted"),
        (of_regex("((a{1000}){1000}){1000}"), "too many expressions"),
        (of_regex("([0-9"), "unclosed character class"),
        (
            of_regex("b" * 1000 + "(?=a)"),
            "look-around, including look-ahead and look-behind, is no",
        ),
        (of_ebnf("start: /(a)\\1/"), "backreferences are not supported"),
        (of_json_schema({"type": "string", "pattern": "a{2"}), "unclosed counted repetition"),
        (of_ebnf("root ::= "), "nothing but an empty answer"),
        (of_ebnf('start: ""'), "nothing but an empty answer"),
    ],
)
def test_grammars_that_nobody_can_follow_are_refused(
    grammars: GrammarTokenizer, grammar: str, reason: str
) -> None:
    with pytest.raises(ClientError, match="x cannot be followed: ") as raised:
        grammars.check(grammar, param="x")
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "grammar",
    [
        of_json_schema(schema=True),
        of_json_schema(PERSON),
        of_regex(""),
        of_choice([""]),
        of_ebnf('root ::= "" | "a"'),
    ],
)
def test_grammars_that_can_be_followed(grammars: GrammarTokenizer, grammar: str) -> None:
    grammars.check(grammar, param="x")


def test_a_grammar_that_the_library_panics_of_is_refused(grammars: GrammarTokenizer) -> None:
    """It cuts what it says of a schema to 100 bytes, in the middle of a character, too."""
    schema = {"minimum": ["x" * 97 + "\U0009ff23"]}
    with pytest.raises(ClientError, match="schema cannot be followed: end byte index 100"):
        grammars.check(of_json_schema(schema), param="schema")


def test_a_model_whose_answers_have_no_end_follows_no_grammar(smollm2: TextModel) -> None:
    endless = GrammarTokenizer(replace(smollm2, end_token_ids=frozenset()))
    with pytest.raises(ClientError, match="no token that ends an answer"):
        endless.check(of_regex("a"), param="x")


def test_schemas_that_cannot_be_read() -> None:
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"items": deep}
    with pytest.raises(ClientError, match="the schema cannot be read: recursion limit") as raised:
        of_json_schema(deep, param="x")
    assert raised.value.param == "x"


def test_grammars_that_would_take_long_to_read_are_refused_at_once() -> None:
    began = time.perf_counter()
    chain = [f'r{n} ::= "x" r{n + 1}\n' for n in range(MAX_GBNF_RULES)]
    for text in ("\n" * 200_000, "root ::= r0\n" + "".join(chain), "root ::= " + '"a"' * 9_000):
        with pytest.raises(ValueError, match="as GBNF it has"):
            of_ebnf(text)
    assert time.perf_counter() - began < 1
    with pytest.raises(ValueError, match="it is no GBNF"):
        of_ebnf("root ::= " + "(" * 5_000)


def test_a_rule_of_gbnf_may_be_named_start_of_something() -> None:
    assert "begin" in of_ebnf('root ::= start-of\nstart-of ::= "begin"')


def test_what_is_read_beforehand_is_read_once(smollm2: TextModel) -> None:
    begun, made = Event(), list[GrammarTokenizer]()

    def load() -> GrammarTokenizer:
        begun.set()
        made.append(GrammarTokenizer(smollm2))
        return made[-1]

    grammars = Grammars(load)
    grammars.prepare()
    assert begun.wait(10)  # nobody has wanted it yet
    assert grammars.tokenizer() is grammars.tokenizer()
    assert len(made) == 1


def test_who_wants_a_vocabulary_is_told_that_it_cannot_be_read() -> None:
    def load() -> GrammarTokenizer:
        raise SetupError("no file")

    grammars = Grammars(load)
    grammars.prepare()
    with pytest.raises(SetupError, match="no file"):
        grammars.tokenizer()


def chained_schema(n: int) -> str:
    chain = {f"d{i}": {"properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(n)}
    return of_json_schema({"$defs": {**chain, f"d{n}": {"type": "string"}}, "$ref": "#/$defs/d0"})


def chained_rules(n: int) -> str:
    return of_ebnf("start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(n)) + f'r{n}: "e"\n')


@pytest.mark.parametrize("grammar", [chained_schema(1500), chained_rules(8000)])
def test_rules_that_follow_each_other_thousands_deep_end_no_process(
    grammars: GrammarTokenizer, grammar: str
) -> None:
    """They would overflow the stack of a usual thread."""
    assert len(grammar) < MAX_GRAMMAR_CHARS
    grammars.check(grammar, param="x")
    assert allowed(grammars.matcher(grammar), ())


def test_a_grammar_that_keeps_passes_waiting_is_refused(
    grammars: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.text.grammar.MAX_TRIED_S", 0.0)
    with pytest.raises(ClientError, match="x cannot be followed: it takes too long"):
        grammars.check(of_json_schema(PERSON), param="x")


def test_regular_expressions_that_grow_with_the_square_are_refused(
    grammars: GrammarTokenizer,
) -> None:
    with pytest.raises(ClientError, match="too big"):
        grammars.check(of_regex("a?" * 20_000), param="x")


def test_a_schema_that_is_too_long_is_not_read() -> None:
    many = {f"property_{n}": {"type": "string"} for n in range(80_000)}
    began = time.thread_time()
    with pytest.raises(ClientError, match=f"x has .* at most {MAX_GRAMMAR_CHARS}") as raised:
        of_json_schema({"type": "object", "properties": many}, param="x")
    assert raised.value.param == "x"
    assert time.thread_time() - began < 2
