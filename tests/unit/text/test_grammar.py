"""Which tokens may come next, held against what the finished texts must be."""

import json
import re
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest

from common.text.grammar import (
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
