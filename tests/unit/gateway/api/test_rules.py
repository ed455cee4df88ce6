"""Which tokens an answer may be made of."""

from dataclasses import replace

import numpy as np
import pytest

from common.text.grammar import of_regex
from common.text.token_rules import read_rules, spellings
from launch.gateway.api.served import Served
from tests.unit.gateway.api.preparing import USER, chat, completion, refused

END = 2


def may(served: Served, *outputs: int, **fields: object) -> set[int]:
    text = completion(served, **fields).prompts[0].params.grammar
    assert chat(served, **fields).prompts[0].params.grammar == text
    read = read_rules(text)
    assert read is not None
    left_V = read.without_bad_words(read.allowed(None), outputs, ())
    return set(np.flatnonzero(left_V).tolist())


def test_nothing_said_is_no_rule(served: Served) -> None:
    assert completion(served, bad_words=[], allowed_token_ids=None).prompts[0].params.grammar == ""


def test_both_kinds_at_once(served: Served) -> None:
    cats = spellings("cat", served.text.tokenizer)
    assert may(served, allowed_token_ids=[3, 9, 3]) == {3, 9}
    everything = set(range(served.text.vocab_size))
    assert everything - may(served, bad_words=["cat"]) == {word[0] for word in cats}
    (cat, *_), (spaced, *_) = cats
    both = {"bad_words": ["cat"], "allowed_token_ids": [cat, spaced, 7]}
    assert may(served, **both) == {7}


def test_rules_stand_beside_a_form_and_thoughts(served: Served) -> None:
    form = {"structured_outputs": {"regex": "[ab]+"}}
    read = read_rules(completion(served, bad_words=["b"], **form).prompts[0].params.grammar)
    assert read is not None
    assert read.grammar == of_regex("[ab]+")
    thinking = replace(served, reasoning_parser="qwen3")
    assert chat(thinking, bad_words=["b"]).thinks is not None
    assert chat(thinking, **form).thinks is None


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids", "allowed_token_ids has 0 items"),
        ({"allowed_token_ids": [3, -1]}, "allowed_token_ids[1]", "Expected `int` >= 0, got -1"),
        ({"allowed_token_ids": [49152]}, "allowed_token_ids", "token id 49152 at position 0"),
        ({"allowed_token_ids": "3"}, "allowed_token_ids", "Expected `array`"),
        ({"bad_words": "cat"}, "bad_words", "Expected `array`"),
        ({"bad_words": ["a", ""]}, "bad_words[1]", "bad_words[1] has 0 characters; at least 1"),
        ({"bad_words": ["a", " "]}, "bad_words[1]", 'bad_words[1] is " ", which is no word'),
        (
            {"bad_words": [f"{n} {'ab ' * 300}" for n in range(60)]},
            "bad_words",
            "bad_words make 18",
        ),
        (
            {"allowed_token_ids": [END], "min_tokens": 1},
            "allowed_token_ids",
            "allowed_token_ids has only tokens that end an answer, but min_tokens is 1",
        ),
        (
            {"allowed_token_ids": [1, 2], "bad_words": ["<|im_start|>", "<|im_end|>"]},
            "bad_words",
            "bad_words has every one of allowed_token_ids",
        ),
        ({"use_beam_search": True}, "use_beam_search", "use_beam_search is not supported: "),
    ],
)  # fmt: skip
def test_refusals(served: Served, fields: dict[str, object], param: str, message: str) -> None:
    for messages in ({}, {"messages": [USER]}):
        assert refused(served, **fields, **messages)[0] == param
        assert message in refused(served, **fields, **messages)[1]


def test_no_beams_are_what_there_is_anyway(served: Served) -> None:
    assert completion(served, use_beam_search=False).prompts == completion(served).prompts
